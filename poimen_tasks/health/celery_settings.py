"""Settings of the Celery app that conflict with safe work. Batches do not depend on most; plain tasks of the app do.

Each rule comes from a fault that people met; `config/celeryconfig.py` has the recommended values with their reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from poimen_tasks.health.finding import Finding, Level

__all__ = ["check_celery"]

Conf = Mapping[str, Any]
_HOUR = 3600.0
_DAY = 24 * _HOUR


class _Rule(NamedTuple):
    """A setting, when it conflicts, what happens then, and the value that avoids it."""

    setting: str
    conflicts: Callable[[Conf], bool]
    why: str
    better: str


def check_celery(conf: Conf) -> Iterator[Finding]:
    """A warning for each setting that conflicts, with what to change.

    Args:
        conf: the app's configuration, as `app.conf`.
    """
    broker = _source(conf, "broker_url")
    rules = [*_ALWAYS, *(_REDIS_BROKER if _is_redis(broker) else _OTHER_BROKER)]
    rules += _AMQP_BROKER if _is_amqp(broker) else ()
    rules += _REDIS_BACKEND if _is_redis(_source(conf, "result_backend")) else ()
    found = [rule for rule in rules if rule.conflicts(conf)]
    for rule in found:
        yield Finding(Level.WARNING, "celery", rule.setting, rule.why, f"set {rule.setting} = {rule.better}")
    if not found:
        yield Finding(Level.OK, "celery", "settings", "no setting of the app conflicts")


def _source(conf: Conf, name: str) -> Any:
    # As an attribute it may come from the environment, CELERY_BROKER_URL for one; as a key it does not.
    return getattr(conf, name, None) or conf.get(name)


def _begins(source: Any, schemes: tuple[str, ...]) -> bool:
    first = source[0] if isinstance(source, (list, tuple)) and source else source
    return isinstance(first, str) and first.startswith(schemes)


def _is_redis(source: Any) -> bool:
    return _begins(source, ("redis", "rediss", "sentinel", "unix"))


def _is_amqp(source: Any) -> bool:
    return _begins(source, ("amqp", "pyamqp", "py-amqp", "librabbitmq"))


def _is_false(setting: str) -> Callable[[Conf], bool]:
    return lambda conf: not conf.get(setting)


def _is_true(setting: str) -> Callable[[Conf], bool]:
    return lambda conf: bool(conf.get(setting))


def _transport(name: str, default: Any = None) -> Callable[[Conf], Any]:
    return lambda conf: (conf.get("broker_transport_options") or {}).get(name, default)


_visibility = _transport("visibility_timeout", _HOUR)


def _limit_beyond_visibility(conf: Conf) -> bool:
    limit = conf.get("task_time_limit") or conf.get("task_soft_time_limit") or 0
    return float(limit) >= float(_visibility(conf))


def _join_beyond_visibility(conf: Conf) -> bool:
    return 2 * float(conf.get("result_chord_join_timeout") or 0) >= float(_visibility(conf))


def _takes_pickle(conf: Conf) -> bool:
    accepted = {*(conf.get("accept_content") or ()), *(conf.get("result_accept_content") or ())}
    return bool(accepted & {"pickle", "application/x-python-serialize"})


def _forgets_results_soon(conf: Conf) -> bool:
    expires = conf.get("result_expires")
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else float(expires or 0)
    return 0 < seconds < _DAY


_ALWAYS = (
    _Rule(
        "task_always_eager", _is_true("task_always_eager"),
        "batches run inside the process that dispatches them, one item after the other", "False, but for tests",
    ),
    _Rule(
        "accept_content", _takes_pickle,
        "pickle is accepted: whoever can write to the broker or the result store can run code here", '["json"]',
    ),
    _Rule("task_acks_late", _is_false("task_acks_late"), "a plain task is lost when its worker dies", "True"),
    _Rule(
        "task_reject_on_worker_lost", _is_false("task_reject_on_worker_lost"),
        "a plain task is lost when its pool process dies, out of memory for one", "True",
    ),
    _Rule(
        "worker_deduplicate_successful_tasks", _is_true("worker_deduplicate_successful_tasks"),
        "a chord hangs when a worker dies between storing a member's result and reporting it", "False",
    ),
    _Rule(
        "broker_connection_max_retries", lambda conf: conf.get("broker_connection_max_retries") is not None,
        "a worker gives up on its broker after that many attempts", "None",
    ),
    _Rule(
        "broker_connection_retry_on_startup", _is_false("broker_connection_retry_on_startup"),
        "a worker that starts before its broker ends", "True",
    ),
    _Rule(
        "result_expires", _forgets_results_soon, "results of plain tasks and chords vanish within a day",
        "at least a day, longer than the longest workflow",
    ),
)  # fmt: skip

_AMQP_BROKER = (
    _Rule(
        "broker_transport_options['confirm_publish']", lambda conf: not _transport("confirm_publish")(conf),
        "a plain task that is sent while the broker goes away is lost without an error", "True",
    ),
    _Rule(
        "broker_transport_options['read_timeout']", lambda conf: not _transport("read_timeout")(conf),
        "whoever publishes hangs when the broker freezes or its connection died without a word", "10",
    ),
)  # fmt: skip

_REDIS_BROKER = (
    _Rule(
        "broker_transport_options['visibility_timeout']", _limit_beyond_visibility,
        "a plain task that runs longer than this is delivered again while it runs", "more than task_time_limit",
    ),
    _Rule(
        "broker_transport_options['visibility_timeout']", _join_beyond_visibility,
        "a chord's body is delivered twice while its worker waits for the members' results",
        "more than twice result_chord_join_timeout",
    ),
    _Rule(
        "broker_transport_options['retry_on_timeout']", _transport("retry_on_timeout"),
        "a message is published twice after a timeout, and batch publishing is off", "False",
    ),
    _Rule(
        "broker_transport_options['socket_timeout']", lambda conf: not _transport("socket_timeout")(conf),
        "a worker hangs on a connection that died without a word", "30",
    ),
    _Rule(
        "broker_channel_error_retry", _is_false("broker_channel_error_retry"),
        "a worker stays without messages after Redis refused a command", "True",
    ),
    _Rule(
        "task_default_priority", lambda conf: conf.get("task_default_priority") is None,
        "plain tasks without a priority come before everything else", "3",
    ),
    _Rule(
        "worker_disable_prefetch", _is_false("worker_disable_prefetch"),
        'a busy worker holds messages while another one idles, and has taken others before what priority="high" sends',
        "True",
    ),
)  # fmt: skip

# Elsewhere a worker cannot do without any, but with one message a process it holds the least.
_OTHER_BROKER = (
    _Rule(
        "worker_prefetch_multiplier", lambda conf: conf.get("worker_prefetch_multiplier") != 1,
        'a busy worker holds messages while another one idles, and has taken others before what priority="high" sends',
        "1",
    ),
)  # fmt: skip

_REDIS_BACKEND = (
    _Rule(
        "redis_socket_timeout", lambda conf: float(conf.get("redis_socket_timeout") or 120) > 60,
        "a frozen Redis blocks a worker for two minutes a call", "30",
    ),
    _Rule(
        "result_backend_always_retry", _is_false("result_backend_always_retry"),
        "a short outage of the result store fails finished plain tasks", "True",
    ),
    _Rule(
        "result_backend_max_retries", lambda conf: conf.get("result_backend_max_retries") in (None, float("inf")),
        "a worker may wait for the result store for ever", "20",
    ),
    _Rule(
        "redis_retry_on_timeout", _is_false("redis_retry_on_timeout"),
        "a slow reply of the result store fails a finished plain task", "True",
    ),
)  # fmt: skip
