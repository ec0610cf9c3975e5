"""Every native canvas of the table, with all of its messages parked on their way: it ends as it does undisturbed."""

from __future__ import annotations

import threading
from types import ModuleType

import pytest

from tests.acceptance.canvases import CASES, Left
from tests.acceptance.parking import parked, settled
from tests.acceptance.test_conformance import Ran, Side, apply_native, check, settle, value_of
from tests.conftest import Workers, eventually

NATIVE = [name for name, case in CASES.items() if not isinstance(case.native, Left)]


class Flapping(threading.Thread):
    """Pauses everything, and resumes it when what is in the queue has been parked; again and again."""

    def __init__(self, steps: ModuleType) -> None:
        super().__init__(daemon=True)
        self._steps = steps
        self._over = threading.Event()
        self.parked = 0

    def run(self) -> None:
        """Until `stop`."""
        while not self._over.is_set():
            self._steps.poimen.pause(everything=True)
            self._over.wait(0.4)
            self.parked += len(parked(self._steps))
            self._steps.poimen.resume(everything=True)
            self._over.wait(0.8)

    def stop(self) -> None:
        """End, resumed."""
        self._over.set()
        self.join()


@pytest.fixture(scope="module")
def ran(steps: ModuleType, crew: Workers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Every case, begun under a pause, and paused again and again until its end."""
    side = Side(
        steps,
        tmp_path_factory.mktemp("paused"),
        lambda made: apply_native(steps, made),
        lambda going, _: value_of(going),
    )
    steps.poimen.pause(everything=True)
    for name in NATIVE:
        side.begin(name)
    queue = steps.poimen.store.client.redis
    eventually(lambda: queue.llen("celery") == 0 and len(parked(steps)) > len(NATIVE) / 2, timeout=60)
    steps.poimen.resume(everything=True)
    flapping = Flapping(steps)
    flapping.start()
    try:
        values = side.end()
    finally:
        flapping.stop()
    settle(steps, {"native": values, "dispatched": {}}, side, side)
    settled(steps)
    assert flapping.parked > len(NATIVE)
    return {name: Ran(value, side.notes(name)) for name, value in values.items()}


@pytest.mark.parametrize("name", NATIVE)
def test_it_ends_as_ever(ran: dict[str, Ran], name: str) -> None:
    """A canvas whose messages are parked, each perhaps, ends as it does without a pause (promise P14)."""
    check(ran[name], CASES[name].native, CASES[name].notes)
