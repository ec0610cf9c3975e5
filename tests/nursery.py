"""Python programs that start as forks of a process which has imported the libraries already.

Of the CPU that the start of a worker or of a command takes, nine tenths go into importing Celery, its plugins, Redis
and this package: more than a second each, and the tests start hundreds. So one process a run imports them once and
forks itself for each start, as `multiprocessing` does with its "forkserver". What is started is a process like any
other: its environment, directory, files, session, signals and exit code are its own, `__main__` and `sys.argv` are as
after `python -m`, and it is killed when the run dies. Only its line in `ps` is the nursery's.

A program that cannot be had so starts plainly: on another system than Linux, one that patches the standard library
before anything else is imported (gevent, eventlet), one with variables of its own for the interpreter or the loader,
one whose path has another package in the place of one that is imported already. With TEST_PLAIN_STARTS=1 in the
environment all do, and while coverage is measured, which begins with an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent

# What a worker of Celery and our commands import, and nothing that starts a thread or reads the environment.
PRELOADED = (
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.worker.consumer",
    "cffi.cparser",  # a pool process asks through it to be killed with its parent
    "kombu.transport.redis",
    "poimen_tasks.cli",
)
File = IO[Any] | int  # an open file, or one of the constants of `subprocess`
_PLAINLY = {"COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START", "TEST_PLAIN_STARTS"}
_PATCHING = {"eventlet", "gevent"}  # pools for which Celery patches the standard library first
_SETTLED = {"PYTHONPATH", "PYTHONUNBUFFERED"}  # of the interpreter's variables those that a fork can still follow
_MOST = 1 << 20  # bytes of a request: its environment, mostly
_KILLED_WITH_PARENT = 1  # PR_SET_PDEATHSIG


# ------------------------------------------------------------------------------------- the run's side
class Child:
    """A process started in the nursery; as much of `subprocess.Popen` as tests use."""

    def __init__(
        self, line: socket.socket, args: Sequence[str], stdin: IO[bytes] | None, stdout: IO[bytes] | None
    ) -> None:
        self.args = list(args)
        if not (pid := line.recv(64)):
            raise RuntimeError(f"the nursery is gone, and did not start {' '.join(args)}")
        self.pid = int(pid)
        self.returncode: int | None = None
        self.stdin = stdin
        self.stdout = stdout
        self._line = line
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code: minus the signal's number after a signal.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        with self._lock:
            if self.returncode is None:
                if not select.select([self._line], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                self.returncode = int(
                    self._line.recv(64) or -signal.SIGKILL
                )  # nothing: the nursery is gone, and all with it
                self._line.close()
            return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes | None, None]:
        """Close its input, read what it writes and wait for its end.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin:
            self.stdin.close()
        text = b""
        while self.stdout and not self.stdout.closed:
            if not select.select([self.stdout], [], [], deadline and max(0.0, deadline - time.monotonic()))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0, text)
            if not (more := self.stdout.read(1 << 16)):
                self.stdout.close()
            text += more
        self.wait(deadline and max(0.0, deadline - time.monotonic()))
        return text if self.stdout else None, None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


def start(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | str = ROOT,
    stdin: File = subprocess.DEVNULL,
    stdout: File,
    stderr: File = subprocess.STDOUT,
    new_session: bool = False,
) -> Any:
    """Start `python -m <words>` and return its process: a `Child`, or a `subprocess.Popen` where it starts plainly.

    It is killed when the run dies. `env` is the whole environment. The files are as for `subprocess.Popen`; the run's
    end of a pipe is not buffered.
    """
    if not _forks(words, env):
        from poimen_tasks.store.tether import tethered

        return subprocess.Popen(
            tethered([sys.executable, "-m", *words]),
            env=dict(env),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
            bufsize=0,
        )
    request = {"words": list(words), "env": dict(env), "cwd": str(cwd), "session": new_session}
    return _nursery().start(request, stdin, stdout, stderr)


def run(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | str = ROOT,
    timeout: float = 60.0,
) -> subprocess.CompletedProcess[str]:
    """Run `python -m <words>` to its end and return what it wrote, as `subprocess.run` does with `capture_output`.

    Raises:
        subprocess.TimeoutExpired: it ran longer than `timeout` seconds; it is killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(words, env=env, cwd=cwd, stdout=out, stderr=err)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        texts = [_read(file) for file in (out, err)]
    return subprocess.CompletedProcess(["python", "-m", *words], code, *texts)


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _forks(words: Sequence[str], env: Mapping[str, str]) -> bool:
    if not hasattr(os, "pidfd_open") or _PLAINLY.intersection(os.environ) or _PATCHING.intersection(words):
        return False
    return _interpreter(env) == _interpreter(os.environ)


def _interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that Python and the loader read before the first line of a program."""
    return {k: v for k, v in env.items() if k.startswith(("PYTHON", "LD_")) and k not in _SETTLED}


class _Nursery:
    """The process that forks; ends with the run, whose end of the line closes then."""

    def __init__(self) -> None:
        self._line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.nursery", str(its.fileno())],
                pass_fds=[its.fileno()],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._line.close()
        self._process.wait()

    def start(self, request: Mapping[str, Any], stdin: File, stdout: File, stderr: File) -> Child:
        with contextlib.ExitStack() as stack:
            mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(its)
            null = stack.enter_context(Path(os.devnull).open("r+b", buffering=0))
            reads, into = _pipe(stack, stdin, null, ours=1)
            writes, out_of = _pipe(stack, stdout, null, ours=0)
            says = writes if stderr == subprocess.STDOUT else _pipe(stack, stderr, null, ours=0)[0]
            numbers = [its.fileno(), reads.fileno(), writes.fileno(), says.fileno()]
            socket.send_fds(self._line, [json.dumps(request).encode()], numbers)
        return Child(mine, request["words"], into, out_of)


def _pipe(stack: contextlib.ExitStack, file: File, null: IO[bytes], *, ours: int) -> tuple[IO[Any], IO[bytes] | None]:
    """The child's file and, of a pipe, our end: 1 to write, 0 to read."""
    if file == subprocess.DEVNULL:
        return null, None
    if file != subprocess.PIPE:
        assert not isinstance(file, int)
        return file, None
    ends = [open(number, mode, buffering=0) for number, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]  # noqa: PTH123, SIM115
    return stack.enter_context(ends[1 - ours]), ends[ours]


@functools.cache
def _nursery() -> _Nursery:
    return _Nursery()


# --------------------------------------------------------------------------------- the nursery's side
class _Forking:
    """Takes requests and forks; tells each caller the process id and, later, the exit code."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._selector = selectors.DefaultSelector()
        self._selector.register(line, selectors.EVENT_READ)

    def next_child(self) -> dict[str, Any] | None:
        """Serve until the run is over (None); in each forked process, return what it was asked for."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._line:
                    self._reap(key)
                    continue
                text, files, _, _ = socket.recv_fds(self._line, _MOST, 8)
                if not text:
                    return None
                if request := self._fork(json.loads(text), files):
                    return request

    def _fork(self, request: dict[str, Any], files: list[int]) -> dict[str, Any] | None:
        caller = socket.socket(fileno=files[0])
        parent = os.getpid()
        set_up, done = os.pipe()
        if not (pid := os.fork()):
            os.close(set_up)
            self._forget(caller)
            _settle(request, files[1:], parent)
            os.close(done)  # from here on it may be signalled: its session is made
            return request
        os.close(done)
        os.read(set_up, 1)
        for number in (set_up, *files[1:]):
            os.close(number)
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, caller))
        caller.send(str(pid).encode())
        return None

    def _forget(self, caller: socket.socket) -> None:
        """A child keeps nothing of its parent's."""
        for key in list(self._selector.get_map().values()):
            if key.data:
                key.data[1].close()
            os.close(key.fd) if isinstance(key.fileobj, int) else key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        caller.close()

    def _reap(self, key: selectors.SelectorKey) -> None:
        pid, caller = key.data
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(key.fileobj)
        os.close(key.fd)
        with contextlib.suppress(OSError), caller:
            caller.send(str(os.waitstatus_to_exitcode(status)).encode())


def _settle(request: Mapping[str, Any], files: Sequence[int], parent: int) -> None:
    ctypes.CDLL(None).prctl(_KILLED_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if request["session"]:
        os.setsid()
    for standard, number in enumerate(files):
        os.dup2(number, standard)
    for number in set(files):
        os.close(number)
    if request["env"].get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "wb", closefd=False), sys.stdout.encoding, write_through=True)
    os.chdir(request["cwd"])
    had = {str(ROOT), *_entries(os.environ)}
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    sys.path[:] = [request["cwd"], *_entries(os.environ), *(entry for entry in sys.path if entry not in had)]


def _shadows(entries: Sequence[str]) -> bool:
    """True when one of these directories has a module of a name that is imported already, from here or elsewhere."""
    directories = [Path(entry) for entry in entries if entry != str(ROOT) and Path(entry).is_dir()]
    return any(file.name.partition(".")[0] in sys.modules for directory in directories for file in directory.iterdir())


def _entries(env: Mapping[str, str]) -> list[str]:
    return [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]


def _main(number: int) -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise copy every page
    request = _Forking(socket.socket(fileno=number)).next_child()
    if request is None:
        return
    if _shadows([request["cwd"], *_entries(os.environ)]):
        os.execv(sys.executable, [sys.executable, "-m", *request["words"]])  # noqa: S606 - a list, no shell line
    module, *words = request["words"]
    sys.argv[:] = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
