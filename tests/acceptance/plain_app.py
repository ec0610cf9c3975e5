"""A Celery app that knows nothing of batches, on the same broker."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("plain", broker=os.environ["POIMEN_BROKER_URL"])
