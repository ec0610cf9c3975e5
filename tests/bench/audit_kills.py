"""Seeded kills over every step of sealing: what is recorded must be in the log once, in order, whoever died when.

`python -m tests.bench.audit_kills DIRECTORY --kills 1000 --seed 1` runs it by itself and prints what it found, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import msgpack
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from poimen_tasks.audit.content import ContentStore
from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.event import AuditEvent, pack_event
from poimen_tasks.audit.log import SealedLog
from poimen_tasks.audit.sealer import Sealer
from poimen_tasks.audit.segments import read_lines
from poimen_tasks.audit.source import Source
from poimen_tasks.audit.verify import verify
from poimen_tasks.errors import StoreRefused, StoreUnavailable
from poimen_tasks.settings import Settings
from poimen_tasks.store import Store
from poimen_tasks.store.audit_scripts import AuditScripts
from poimen_tasks.store.server import EmbeddedServer
from tests.bench.apps import Bench
from tests.bench.measure import Row, Target
from tests.conftest import ROOT

__all__ = ["audit_kills"]

_PRODUCERS = 2
#: Small segments and short lines, so that every few events a segment is closed and a field is kept by digest.
_SEGMENT, _INLINE = 16_000, 400
#: Seconds that a sealer lives when the step at which it was to die does not come.
_LIFE = 0.3
_DISK = ("create", "write", "sync", "sync_path", "put", "replace", "rename", "cut", "lock_up", "remove")
_VERBS = ("describe_audit", "register_sealer", "read_audit", "publish_sealed", "leave_sealer")
#: Steps that come once in a sealer's life; one that cuts needs one before it that died while it wrote.
_RARE = frozenset({"describe_audit", "register_sealer", "leave_sealer", "cut", "lock_up", "create", "remove"})
STEPS = (
    "write half",
    "write half a line",
    *(f"{name} {when}" for name in (*_DISK, *_VERBS) for when in ("before", "after")),
)


def audit_kills(bench: Bench) -> Iterator[Row]:
    """Kills of sealers, servers and producers: nothing lost, nothing twice, nothing out of order."""
    bench.stop()
    with tempfile.TemporaryDirectory(prefix="audit-kills-") as directory:
        told = _apart(Path(directory), bench.size(1_200, 60))
    yield Row(
        name=f"audit: events lost, twice or out of order after {told['kills']:,} kills, {told['events']:,} events",
        unit="",
        ours=told["lost"] + told["twice"] + told["disorder"] + told["unknown"] + (not told["verified"]),
        target=Target(of="ours", at_most=0),
        samples=told,
    )


def _apart(directory: Path, kills: int, seed: int = 1) -> dict[str, Any]:
    """In a process of its own, which forks."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.audit_kills",
        str(directory),
        "--kills",
        str(kills),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


# --- what is killed ------------------------------------------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _Plan:
    """Dies when a step comes for the n-th time."""

    def __init__(self, step: str, nth: int) -> None:
        self._step, self._left = step, nth

    def is_now(self, step: str) -> bool:
        """Whether this is where it dies."""
        self._left -= step == self._step
        return self._left <= 0 and step == self._step

    def at(self, step: str) -> None:
        """Die, if this is the step."""
        if self.is_now(step):
            _die()


class _Disk(Disk):
    def __init__(self, plan: _Plan) -> None:
        self._plan = plan

    def write(self, fd: int, data: bytes, path: Path) -> None:
        self._plan.at("write before")
        if self._plan.is_now("write half") or (path.suffix == ".jsonl" and self._plan.is_now("write half a line")):
            os.write(fd, data[: len(data) // 2])
            _die()
        super().write(fd, data, path)
        self._plan.at("write after")


def _around(name: str) -> Callable[..., Any]:
    original: Callable[..., Any] = getattr(Disk, name)

    def call(self: _Disk, *args: Any, **options: Any) -> Any:
        self._plan.at(f"{name} before")
        result = original(self, *args, **options)
        self._plan.at(f"{name} after")
        return result

    return call


for _name in _DISK:
    if _name != "write":
        setattr(_Disk, _name, _around(_name))


class _Audit(AuditScripts):
    def __init__(self, store: Store, plan: _Plan) -> None:
        super().__init__(store.client)
        self._plan = plan

    def _call(self, name: str, request: dict[str, Any], *, patience: float | None = 0.0) -> Any:
        self._plan.at(f"{name} before")
        result = super()._call(name, request, patience=patience)
        self._plan.at(f"{name} after")
        return result


class _Run:
    """One run: its server, its producers, its log.

    Args:
        directory: everything goes below it.
        seed: who dies when.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.log, self.told = directory / "log", directory / "told.txt"
        self.directory = directory
        self.server = EmbeddedServer(directory / "server")
        self.random = random.Random(seed)
        self.kills, self.missed = Counter[str](), Counter[str]()
        self.producers: dict[int, int] = {}
        self.generation = 0

    def store(self) -> Store:
        """A store of the calling process's own."""
        settings = Settings(redis_url=self.server.url, namespace="kills", lease=2.0, connect_timeout=2.0)
        return Store(settings, self.server.url)

    def fork(self, body: Callable[[], None]) -> int:
        """Run it in a child; an error there is noted and is exit code 3."""
        pid = os.fork()
        if pid:
            return pid
        code = 3
        try:
            body()
            code = 0
        except BaseException:  # noqa: BLE001 - a child never returns
            with (self.directory / "errors.txt").open("a") as file:
                traceback.print_exc(file=file)
        os._exit(code)

    def go(self, kills: int) -> None:
        """Kill so often, then let a sealer end in peace."""
        self.told.touch()
        with self.server:
            for number in range(_PRODUCERS):
                self.produce(number)
            while self.kills.total() < kills:
                self.random.choices([self.kill_sealer, self.kill_server, self.kill_producer], [20, 2, 3])[0]()
            for pid in self.producers.values():
                os.kill(pid, signal.SIGTERM)
                self.end(pid)
            self.end(self.fork(lambda: self.seal(_Plan("", 1), forever=True)))
            self.state = self.store().audit.describe_audit()

    def end(self, pid: int, timeout: float = 60.0) -> bool:
        """Wait for a child; returns whether it was killed."""
        deadline = time.monotonic() + timeout
        while True:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                break
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                raise RuntimeError(f"process {pid} did not end")
            time.sleep(0.001)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            raise RuntimeError((self.directory / "errors.txt").read_text())
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    # --- the sealer
    def seal(self, plan: _Plan, *, forever: bool = False) -> None:
        """A sealer, as the command runs it."""
        ends = time.monotonic() + _LIFE
        disk, store = _Disk(plan), self.store()
        with SealedLog.open(self.log, origin="poimen/kills", segment_bytes=_SEGMENT, disk=disk) as log:
            source = Source(_Audit(store, plan), self.log, lease=2.0)
            content = ContentStore(self.log, disk=disk)
            sealer = Sealer(
                log, content, source, inline_bytes=_INLINE,
                stopping=lambda: not forever and time.monotonic() > ends,
            )  # fmt: skip
            while True:
                try:
                    sealer.join()
                    break
                except StoreUnavailable:
                    time.sleep(0.01)
            sealer.run(once=forever)

    def kill_sealer(self) -> None:
        """At the step that was met least."""
        least = min(self.kills[step] + 5 * self.missed[step] for step in STEPS)
        step = self.random.choice([step for step in STEPS if self.kills[step] + 5 * self.missed[step] == least])
        if step.startswith("cut"):
            self.seal_until("write half a line", 1)
        self.seal_until(step, 1 if step.split()[0] in _RARE else self.random.choice([1, 1, 2, 3, 5]))

    def seal_until(self, step: str, nth: int) -> None:
        """A sealer that dies at that step, if it comes."""
        met = self.kills if self.end(self.fork(lambda: self.seal(_Plan(step, nth)))) else self.missed
        met[step] += 1

    # --- the server
    def kill_server(self) -> None:
        """While a sealer and the producers are at work; the sealer dies soon after."""
        pid = self.fork(lambda: self.seal(_Plan("", 1)))
        time.sleep(self.random.uniform(0, 0.05))
        self.server.kill()
        self.server.restart()
        self.kills["server"] += 1
        time.sleep(self.random.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        self.kills["sealer, at any time"] += self.end(pid)

    # --- the producers
    def kill_producer(self) -> None:
        """At any time."""
        number = self.random.randrange(_PRODUCERS)
        time.sleep(self.random.uniform(0, 0.02))
        os.kill(self.producers[number], signal.SIGKILL)
        self.kills["producer"] += self.end(self.producers[number])
        self.produce(number)

    def produce(self, number: int) -> None:
        """Start one; it has a name of its own."""
        self.generation += 1
        name, seed = f"p{self.generation}", self.random.random()
        self.producers[number] = self.fork(lambda: self.record(name, random.Random(seed)))

    def record(self, name: str, rnd: random.Random) -> None:
        """Record numbers, a few at a time, and note what was sent and what was answered."""
        stopping: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
        store, at, told = self.store(), 0, os.open(self.told, os.O_WRONLY | os.O_APPEND)
        key, plain = store.keys.build("audit"), Redis.from_url(self.server.url, retry=Retry(NoBackoff(), 0))
        while not stopping:
            count = rnd.choice((1, 1, 2, 3, 4, 5, 6))  # alone, and together
            os.write(told, f"s {name} {at} {at + count}\n".encode())
            try:
                if rnd.random() < 0.2:  # an entry of several lines
                    header = msgpack.packb({"b": name, "w": name, "a": name, "r": [at, at + count]})
                    plain.xadd(key, {"t": "item.cancelled", "h": header, "d": b""})
                elif count == 1:
                    store.entries.record_event(f"{name}-{at}", _event(name, at, rnd))
                else:
                    made = [_event(name, n, rnd) for n in range(at, at + count)]
                    store.entries.record_events([f"{name}-{n}" for n in range(at, at + count)], made, [].extend)
                os.write(told, f"a {name} {at} {at + count}\n".encode())
            except (RedisError, StoreUnavailable, StoreRefused):  # it may be there or not
                time.sleep(0.05)
            at += count
            time.sleep(rnd.uniform(0, 0.008))

    # --- the end
    def judge(self) -> dict[str, Any]:
        """What was recorded, held against what is sealed."""
        sent, answered = _told(self.told)
        sealed: dict[str, list[int]] = {}
        kinds, ids = Counter[str](), Counter[str]()
        for _, line in read_lines(self.log):
            event = json.loads(line)["event"]
            kinds[event["event_type"]] += 1
            ids[event["event_id"]] += 1
            if event["event_type"] in {"step", "item.cancelled"}:
                number = event["action"] if event["event_type"] == "step" else event["task_id"]
                sealed.setdefault(event["actor"], []).append(int(number))
        found = {name: set(numbers) for name, numbers in sealed.items()}
        return {
            "kills": self.kills.total(),
            "events": sum(map(len, sealed.values())),
            "lost": sum(len(numbers - found.get(name, set())) for name, numbers in answered.items()),
            "twice": sum(len(numbers) - len(set(numbers)) for numbers in sealed.values())
            + sum(count - 1 for count in ids.values()),
            "disorder": sum(a > b for numbers in sealed.values() for a, b in pairwise(numbers)),
            "unknown": sum(len(numbers - sent[name]) for name, numbers in found.items()),
            "left": self.state.length + self.state.vanished,
            "verified": verify(self.log).ok,
            "kinds": dict(kinds),
            "steps": dict(sorted(self.kills.items())),
            "missed": dict(self.missed),
            "never": [step for step in STEPS if not self.kills[step]],
        }


def _event(name: str, number: int, rnd: random.Random) -> bytes:
    reasoning = "because " * (rnd.randint(80, 200) if rnd.random() < 0.05 else 1) + str(number)
    return pack_event(AuditEvent(event_type="step", actor=name, action=str(number), reasoning=reasoning), most=1 << 20)


def _told(path: Path) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    sent, answered = dict[str, set[int]](), dict[str, set[int]]()
    for line in path.read_text().splitlines():
        what, name, start, stop = line.split()
        (sent if what == "s" else answered).setdefault(name, set()).update(range(int(start), int(stop)))
    return sent, answered


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--kills", default=1_000, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(directory: Path, kills: int, seed: int) -> None:
    """Kill, and tell what became of the events."""
    warnings.simplefilter("ignore", DeprecationWarning)  # the thread that forks is not bothered by the server's
    importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")  # children need not do it
    directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    run = _Run(directory, seed)
    run.go(kills)
    click.echo(json.dumps({**run.judge(), "seconds": round(time.monotonic() - began, 1), "seed": seed}))


if __name__ == "__main__":
    main()
