"""What task events cost: no-op items with the worker's events enabled at the default sampling, beside none at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.apps import Bench
from tests.bench.measure import Row, Target, alternating, middle, seconds
from tests.bench.throughput import run_ours

__all__ = ["events"]

_MIRRORED = 0.5
"""Seconds until every pool process knows that events were enabled or disabled."""


def events(bench: Bench) -> Iterator[Row]:
    """The same workers, told to send events and not to in turn, as `celery control` does; nobody listens."""
    from tests.bench import tasks_poimen as ours

    items, most = bench.size(100_000, 5_000), bench.size(4, 1)
    bench.workers(events=False)

    def measure(command: str) -> float:
        ours.app.control.broadcast(command, reply=True, timeout=1.0)
        time.sleep(_MIRRORED)
        return items / seconds(lambda: run_ours(items))

    def on() -> float:
        return measure("enable_events")

    def off() -> float:
        return measure("disable_events")

    # Forth and back: whoever always came second would be the one that finds everything warm.
    runs = alternating(most, on=on, off=off, off_again=off, on_again=on)
    taken = {side: runs[side] + runs[f"{side}_again"] for side in ("on", "off")}
    yield Row(
        name="no-op items end to end, events at default sampling",
        unit="items/s",
        ours=middle(taken["on"]),
        reference=middle(taken["off"]),
        against="Poimen, events off",
        target=Target(of="ratio", at_least=0.9),
        samples={**taken, "items": items, "events": _sent(ours.app, on)},
    )


def _sent(app: Any, run: Any) -> int:
    """Events of items in one more run, to show that there were some."""
    seen: list[str] = []
    over = threading.Event()

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": lambda event: seen.append(event["type"])})
            while not over.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.5, wakeup=False)
                except TimeoutError:
                    continue

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    time.sleep(_MIRRORED)
    run()
    time.sleep(_MIRRORED)
    over.set()
    thread.join()
    return sum(kind.startswith("task-") for kind in seen)
