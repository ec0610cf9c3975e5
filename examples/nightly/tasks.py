"""A batch a night. Beat says when, and names it by its slot: two beats, or a message that comes twice, start no second.

celery -A examples.nightly.tasks worker -l info
celery -A examples.nightly.tasks beat      # NIGHTLY_EVERY=5 in its environment: every five seconds, to try it
"""

from __future__ import annotations

import os
from pathlib import Path

from celery.beat import BeatLazyFunc
from celery.schedules import crontab

from poimen_tasks import Poimen

SHOPS = ("antwerp", "bergen", "cadiz", "dover", "espoo")
PRICES = Path(os.environ.get("NIGHTLY_PRICES", "build/prices.csv"))
EVERY = float(os.environ.get("NIGHTLY_EVERY", "0"))

poimen = Poimen("nightly")
app = poimen.celery
app.conf.task_default_queue = "nightly"  # on a shared server its workers take nobody else's messages


def slot() -> str:
    """The slot that is due, called by beat when it sends the message: the clock that found it due also names it."""
    return app.now().strftime("%Y-%m-%dT%H.%M.%S" if EVERY else "%Y-%m-%d")


app.conf.beat_schedule = {
    "nightly": {
        "task": "nightly.start",
        "schedule": EVERY or crontab(hour=2, minute=0),
        "kwargs": {"date": BeatLazyFunc(slot)},
        "options": {"expires": 12 * 3600},  # too late for its slot: the next one comes
    }
}


@poimen.task(name="nightly.start")
def start(date: str) -> str:
    """Start the batch of that date, or find it started: the id decides."""
    calls = [(date, shop) for shop in SHOPS]
    return poimen.dispatch(poimen.starmap(ask, calls, ids=SHOPS), batch_id=f"nightly-{date}", actor="beat").id


@poimen.task(name="nightly.ask")
def ask(date: str, shop: str) -> int:
    """Ask a shop for its price, and keep it."""
    price = sum(map(ord, date + shop)) % 100
    PRICES.parent.mkdir(parents=True, exist_ok=True)
    with PRICES.open("a", encoding="utf-8") as file:
        file.write(f"{date},{shop},{price}\n")
    return price
