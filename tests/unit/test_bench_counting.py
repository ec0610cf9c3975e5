"""The no-op of the benchmark counts itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.peers.counting import COUNTS, count
from tests.conftest import ROOT

PROGRAM = """
import os
from threading import Thread
from tests.bench.peers.counting import noop

def work(times):
    for value in range(times):
        noop(value)

work(3)
threads = [Thread(target=work, args=(100,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if (child := os.fork()) == 0:
    work(50)
    os._exit(0)
os.waitpid(child, 0)
work(7)
"""


def test_every_noop_of_every_thread_and_process_is_counted(tmp_path: Path) -> None:
    """Threads and a forked process count for themselves, and nothing is lost or counted twice."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), COUNTS: str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=env, cwd=ROOT, timeout=60, check=True)
    assert count(tmp_path) == 3 + 4 * 100 + 50 + 7
