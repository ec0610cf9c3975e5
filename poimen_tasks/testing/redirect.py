"""Leads an app that exists, with everything it says about broker and results, to another Redis for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from poimen_tasks._urls import REDIS_SCHEMES
from poimen_tasks.defaults import is_own
from poimen_tasks.worker.celery_compat.app_state import forget_connections

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.app import Poimen
    from poimen_tasks.settings import Settings

__all__ = ["CELERY_VARIABLES", "redirected"]

#: Variables of the environment that count more than an app's settings.
CELERY_VARIABLES = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL", "CELERY_RESULT_BACKEND")

# What an app says of its own broker, and a server on loopback has no use for.
_OF_BROKER = (
    "broker_use_ssl", "broker_user", "broker_password", "broker_vhost", "broker_port", "broker_transport",
    "broker_login_method",
)  # fmt: skip
_OF_BACKEND = ("redis_backend_use_ssl", "redis_username", "redis_password")


@contextmanager
def redirected(poimen: Poimen, settings: Settings) -> Iterator[Poimen]:
    """Broker, results and state of a `Poimen` and its Celery app are those of `settings`; all is put back at the end.

    An existing app without a result backend stays without one. Connections are closed before and after.

    Args:
        poimen: yours, as your modules know it.
        settings: with a `redis_url`; it is the broker, too, unless there is a `broker_url`.

    Raises:
        SettingsError: `settings` has no Redis.
    """
    app = poimen.celery
    app.conf.get("broker_url")  # reads the configuration: until then what may be put back is not there yet
    conf: Any = app.conf
    with _without_variables(), poimen.using(settings):
        before, url = dict(conf.changes), poimen.redis_url
        forget_connections(app)
        conf.update(_changes(app, settings.broker_url or url, url))
        try:
            yield poimen
        finally:
            forget_connections(app)
            conf.clear()
            conf.update(before)


def _changes(app: Celery, broker: str, backend: str) -> dict[str, Any]:
    conf = app.conf
    changes: dict[str, Any] = {
        "broker_url": broker,
        "broker_read_url": broker,
        "broker_write_url": broker,
        # A worker in a thread is stopped by a message.
        "worker_enable_remote_control": True,
        # One backend for all threads, which can be closed; else each thread that ever stored a result keeps its own.
        "result_backend_thread_safe": True,
        **dict.fromkeys(_OF_BROKER),
    }
    if not _is_redis(conf.broker_url):
        changes["broker_transport_options"] = {}
    if _has_results(app):
        changes |= {"result_backend": backend, **dict.fromkeys(_OF_BACKEND)}
        if not _is_redis(conf.result_backend):
            changes["result_backend_transport_options"] = {}
    return changes


def _has_results(app: Celery) -> bool:
    conf: Any = app.conf
    if conf.result_backend is None:  # an app of ours that knew no Redis yet gets its results with it
        return is_own(app) and "result_backend" not in conf.changes
    return conf.result_backend not in ("disabled", "disabled://")


def _is_redis(url: Any) -> bool:
    return isinstance(url, str) and url.partition("://")[0] in REDIS_SCHEMES


@contextmanager
def _without_variables() -> Iterator[None]:
    hidden = {name: os.environ.pop(name) for name in CELERY_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
