"""A batch a night on `celery beat`: `celery -A examples.nightly.tasks worker`, and beat beside it."""
