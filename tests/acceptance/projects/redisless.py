"""An app with neither a Redis broker nor a Redis backend: Poimen has no place for its state."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery

from poimen_tasks import Poimen

FOLDER = Path(os.environ["REDISLESS"])

app = Celery("redisless", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": str(FOLDER),
    "data_folder_out": str(FOLDER),
    "control_folder": str(FOLDER / "control"),
}
poimen = Poimen(app)


@app.task(shared=False)
def plain() -> None:
    """A task as before."""
    (FOLDER / "done").touch()
