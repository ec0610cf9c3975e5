"""A project laid out as Django lays out one; the guide in `docs/adopting.md` shows pieces of it."""

from acme.celery import app as celery_app

__all__ = ["celery_app"]
