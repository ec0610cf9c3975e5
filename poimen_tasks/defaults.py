"""The Celery settings of an app that `Poimen("name")` makes; an existing app keeps its own."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app.control import Control

from poimen_tasks.dispatch.routing import AMQP
from poimen_tasks.errors import SettingsError
from poimen_tasks.serializer import SERIALIZER, register
from poimen_tasks.settings import Settings, resolve_redis_url

__all__ = ["DEFAULTS", "defaults_for", "new_app"]

_EVERYWHERE: dict[str, Any] = {
    # A plain task whose worker died runs again; a lane is exempt, its items come back by their lease.
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    # A poison pill is capped by its max_retries instead of being delivered for ever.
    "task_retry_on_worker_lost": True,
    # It would skip the report of a chord member whose worker died after storing the result.
    "worker_deduplicate_successful_tasks": False,
    # A busy worker must not hold messages while another idles.
    "worker_prefetch_multiplier": 1,
    "worker_eta_task_limit": 1000,
    # A frozen Redis ends in an error, not in a hang.
    "redis_socket_timeout": 30,
    "redis_socket_connect_timeout": 5,
    "redis_socket_keepalive": True,
    "redis_retry_on_timeout": True,
    "redis_backend_health_check_interval": 25,
    "result_backend_always_retry": True,
    "result_backend_max_retries": 20,
    "result_expires": 7 * 86400,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "broker_channel_error_retry": True,
    # Nothing is ever unpickled.
    "task_serializer": SERIALIZER,
    "result_serializer": SERIALIZER,
    "accept_content": [SERIALIZER, "json"],
    "result_accept_content": [SERIALIZER, "json"],
    "event_serializer": "json",
    # Flower shows what happens; no state is ever computed from events.
    "task_track_started": True,
    "worker_send_task_events": True,
    # It is a second publish for each message, before the worker can have the first.
    "task_send_sent_event": False,
    "worker_soft_shutdown_timeout": 10.0,
}

_ON_REDIS: dict[str, Any] = {
    # Only this transport can: it takes a message when a process is free.
    "worker_disable_prefetch": True,
    "broker_transport_options": {
        # Above any hard limit, the publish lease and clock skew; delays are kept in our own sets.
        "visibility_timeout": 6 * 3600,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 25,
        # It replays pushes, and switches batch publishing off.
        "retry_on_timeout": False,
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        "unacked_restore_limit": 1000,
        # With strict priorities 0 is served first; these are the four levels that exist.
        "priority_steps": [0, 3, 6, 9],
        "queue_order_strategy": "priority",
    },
    "task_default_priority": 3,
}

_ON_AMQP: dict[str, Any] = {
    "broker_transport_options": {
        # A message is sent when the broker says so, not when it was written to a connection that may be dead.
        "confirm_publish": True,
        # A frozen broker ends in an error, not in a hang.
        "read_timeout": 10,
        "write_timeout": 10,
    },
    # A broker whose machine vanished is noticed within two of these.
    "broker_heartbeat": 60,
    # The middle of what `high` (9) and `low` (0) become; counts in queues that have an `x-max-priority`.
    "task_default_priority": 5,
}

#: The settings of an app whose broker is a Redis. Each is a default only: `app.conf` may be changed afterwards.
DEFAULTS: dict[str, Any] = {**_EVERYWHERE, **_ON_REDIS}


def defaults_for(broker: str | None) -> dict[str, Any]:
    """Settings that suit a broker, by its URL; None and every other transport than AMQP get those for Redis."""
    amqp = broker is not None and broker.partition("://")[0] in AMQP
    return {**_EVERYWHERE, **_ON_AMQP} if amqp else DEFAULTS


class PlainControl(Control):
    """Remote control in JSON: other apps on this broker hear it too, and know nothing of our serializer.

    A worker of a plain app would not even start: it greets all workers, and ends at an answer that it cannot read. And
    our codec refuses what some replies are made of (`inspect stats`), which would leave a worker deaf.
    """

    mailbox: Any

    def __init__(self, app: Any = None) -> None:
        super().__init__(app)
        mailbox = self.mailbox
        mailbox.serializer = "json"
        mailbox.accept = [*(mailbox.accept or ()), "json"]


def new_app(name: str, settings: Settings) -> Celery:
    """A Celery app with these defaults; broker and results on the settings' Redis, if there is one yet."""
    register()
    app = Celery(name, control=PlainControl)
    try:
        url = resolve_redis_url(settings)
    except SettingsError:
        url = None  # said at the first use, when the broker may have been set
    broker = settings.broker_url or url
    app.conf.update(defaults_for(broker))
    if broker is not None:
        app.conf.update(broker_url=_for_celery(broker))
    if url is not None:
        app.conf.update(result_backend=_for_celery(url))
    return app


def is_own(app: Celery) -> bool:
    """Whether `new_app` made it: such an app has its results on the settings' Redis, as soon as there is one."""
    return isinstance(app.control, PlainControl)


def _for_celery(url: str) -> str:
    """Celery's own scheme for a Unix socket."""
    return f"redis+socket://{url.removeprefix('unix://')}" if url.startswith("unix://") else url
