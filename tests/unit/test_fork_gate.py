"""Forks wait for threads that are within somebody else's code, and those wait for a fork."""

from __future__ import annotations

import threading
import time

from poimen_tasks.worker import fork_gate
from poimen_tasks.worker.fork_gate import ForkGate


def within(gate: ForkGate, leave: threading.Event) -> threading.Thread:
    """A thread that has passed, until it is told to leave."""
    inside = threading.Event()

    def run() -> None:
        with gate.passed():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=run)
    thread.start()
    assert inside.wait(10)
    return thread


def test_a_fork_waits_for_who_has_passed_and_nobody_overtakes_it() -> None:
    """It begins when the last one has left; who comes meanwhile passes when it is over."""
    gate, first, told = ForkGate(), threading.Event(), list[str]()
    holder = within(gate, first)
    fork = threading.Thread(target=lambda: (gate._close(), told.append("fork"), time.sleep(0.1), gate._open()))
    fork.start()
    while not gate._forking:
        time.sleep(0.001)

    def late() -> None:
        with gate.passed():
            told.append("late")

    second = threading.Thread(target=late)
    second.start()
    time.sleep(0.05)
    assert told == []
    first.set()
    for thread in (holder, fork, second):
        thread.join(10)
    assert told == ["fork", "late"]


def test_a_fork_does_not_wait_for_ever(monkeypatch) -> None:
    """Behind its patience it goes on beside who is still within; afterwards all is as before."""
    monkeypatch.setattr(fork_gate, "_PATIENCE", 0.05)
    gate, leave = ForkGate(), threading.Event()
    holder = within(gate, leave)
    gate._close()
    gate._open()
    leave.set()
    holder.join(10)
    with gate.passed():
        assert gate._inside == 1
    assert gate._inside == 0


def test_in_a_child_none_of_the_threads_is_there() -> None:
    """What the parent's threads held there is forgotten."""
    gate, leave = ForkGate(), threading.Event()
    holder = within(gate, leave)
    gate._renew()
    assert (gate._inside, gate._forking) == (0, False)
    with gate.passed():
        pass
    gate._inside = 1  # as the holder leaves it, here in one process
    leave.set()
    holder.join(10)
