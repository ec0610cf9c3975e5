"""The benchmark: Poimen beside plain Celery, in one run on one machine."""
