"""Processes that never outlive the one that started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["tethered"]

# Runs between fork and exec, in an interpreter of its own: a `preexec_fn` is not safe beside threads. On Linux the
# kernel ends the process with its parent (prctl 1 is PR_SET_PDEATHSIG); elsewhere a forked watcher does. SIGKILL,
# because a stopped process ignores all other signals.
_TETHER = """
import os, sys, time
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
elif os.fork() == 0:
    child = os.getppid()
    while os.getppid() == child:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os.kill(child, 9)
        time.sleep(0.2)
    os._exit(0)
if os.getppid() == parent:
    os.execvp(command[0], command)
"""


def tethered(command: Sequence[str]) -> list[str]:
    """Wrap a command so that its process is killed when the one that starts it dies, however that dies.

    The process keeps its id: the wrapper becomes the command. On Linux "dies" includes the end of the *thread* that
    starts the process, so start it from one that lives long enough.
    """
    return [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *command]
