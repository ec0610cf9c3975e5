"""The Celery app, as it was before Poimen came, and the Poimen."""

from celery import Celery
from poimen_tasks import Poimen

app = Celery("acme")
app.config_from_object("acme.settings", namespace="CELERY")
app.autodiscover_tasks(["orders", "billing"])

poimen = Poimen(app)
