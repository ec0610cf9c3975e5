"""What starts in the nursery is as what starts by `python -m`."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests import nursery
from tests.conftest import eventually, pid_exists

SHOWN = """
import json, os, sys
print(json.dumps([sys.argv[1:], sys.argv[0], os.getcwd(), os.environ["SHOWN"], "HOME" in os.environ, sys.path[:3],
                  __name__, __file__, sys.stdin.read(), sorted(os.listdir("/proc/self/fd"))[:3]]))
print("to stderr", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An environment with a path of its own, and without most of this one's."""
    (tmp_path / "shown.py").write_text(SHOWN)
    return {"SHOWN": "yes", "PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)} | {
        name: value for name, value in os.environ.items() if name.startswith("PYTHON") and name != "PYTHONPATH"
    }


@pytest.mark.parametrize("code", [0, 3])
def test_as_plainly(tmp_path: Path, env: dict[str, str], monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Words, directory, environment, path, `__main__`, files and exit code are those of a plain start."""
    forked = nursery.run(["shown", str(code), "a b"], env=env, cwd=tmp_path)
    monkeypatch.setenv("TEST_PLAIN_STARTS", "1")
    plain = nursery.run(["shown", str(code), "a b"], env=env, cwd=tmp_path)
    assert (plain.returncode, plain.stderr) == (code, "to stderr\n")
    assert (forked.returncode, forked.stdout, forked.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_a_module_in_the_place_of_one_that_is_there(tmp_path: Path, env: dict[str, str]) -> None:
    """A path that has another `redis` than the nursery imported is honoured."""
    (tmp_path / "redis.py").write_text("NAME = 'mine'\n")
    (tmp_path / "shown.py").write_text("import redis\nprint(redis.NAME)\n")
    assert nursery.run(["shown"], env=env, cwd=tmp_path).stdout == "mine\n"


def test_pipes_and_sessions(tmp_path: Path, env: dict[str, str]) -> None:
    """It reads and writes pipes, leads a session when it is to, and tells by which signal it ended."""
    (tmp_path / "shown.py").write_text(
        "import os, sys, time\nprint(input(), os.getsid(0) == os.getpid(), flush=True)\ntime.sleep(60)\n"
    )
    one = nursery.start(
        ["shown"], env=env, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, new_session=True
    )
    one.stdin.write(b"hello\n")
    assert one.stdout.readline() == b"hello True\n"
    assert one.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.01)
    one.terminate()
    assert one.communicate(timeout=20) == (b"", None)
    assert one.returncode == -signal.SIGTERM


def test_nothing_outlives_the_run(tmp_path: Path, env: dict[str, str]) -> None:
    """When a run is killed, its nursery ends and all that started there."""
    # Both write to one pipe, each in one piece, lest their lines mix.
    (tmp_path / "shown.py").write_text("import os, time\nos.write(1, b'there\\n')\ntime.sleep(60)\n")
    (tmp_path / "runs.py").write_text(
        "import os, sys, time\nfrom tests import nursery\n"
        f"one = nursery.start(['shown'], env=dict(os.environ), cwd={str(tmp_path)!r}, stdout=sys.stdout)\n"
        "os.write(1, b'%d\\n' % one.pid)\ntime.sleep(60)\n"
    )
    env["PYTHONPATH"] = os.pathsep.join((str(tmp_path), str(nursery.ROOT)))
    run = nursery.start(["runs"], env=env, stdout=subprocess.PIPE)
    said = {run.stdout.readline().strip() for _ in range(2)}
    (pid,) = (int(line) for line in said - {b"there"})
    parent = psutil.Process(pid).ppid()
    assert pid_exists(parent)
    run.kill()
    run.communicate(timeout=20)
    eventually(lambda: not pid_exists(pid) and not pid_exists(parent))
