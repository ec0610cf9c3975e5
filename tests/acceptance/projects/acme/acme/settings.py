"""Settings as Django keeps them: Celery takes those that begin with CELERY_."""

import os

from kombu import Exchange, Queue

REDIS_URL = os.environ.get("ACME_REDIS_URL", "redis://localhost:6379/0")

CELERY_BROKER_URL = REDIS_URL
CELERY_RESULT_BACKEND = REDIS_URL
CELERY_TIMEZONE = "Europe/Berlin"
CELERY_TASK_QUEUES = (
    Queue("celery"),
    Queue("orders"),
    Queue("heavy"),
    Queue("reports", Exchange("reports", type="topic"), routing_key="report.#"),
)
CELERY_TASK_ROUTES = (
    "acme.routing.by_weight",
    {
        "orders.tasks.where": {"queue": "orders", "priority": 6},
        "orders.tasks.*": {"queue": "orders"},
        "billing.tasks.daily": {"exchange": "reports", "routing_key": "report.daily"},
    },
)
