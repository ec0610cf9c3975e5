"""What the checks say about facts; no server is asked."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from poimen_tasks.defaults import DEFAULTS, defaults_for
from poimen_tasks.errors import StoreUnavailable
from poimen_tasks.health import Finding, Level, check_audit, check_celery, check_server, check_workers, lag_of
from poimen_tasks.health.audit import Lag
from poimen_tasks.health.server import no_server
from poimen_tasks.settings import Settings
from poimen_tasks.store.audit_scripts import StreamState
from poimen_tasks.store.keys import LAYOUT
from poimen_tasks.store.reads import WorkerInfo
from poimen_tasks.store.survey import ServerFacts

LOCAL = "redis://127.0.0.1:6379/0"
SOUND = {"redis_version": "7.4.1", "maxmemory_policy": "noeviction", "aof_enabled": 1, "role": "master"}


def facts(*, config=None, anybody=True, layout=str(LAYOUT), **info):
    """A sound server's facts, but for what is given."""
    return ServerFacts({**SOUND, **info}, config or {}, anybody, layout)


def worst(findings, check):
    """The one finding of a check, or the worst of them."""
    order = [Level.OK, Level.WARNING, Level.ERROR]
    return max((one for one in findings if one.check == check), key=lambda one: order.index(one.level))


def levels(findings):
    return {one.check: one.level for one in findings}


# ------------------------------------------------------------------------------------------- server
def test_a_sound_server():
    """A server with all in order gets one good line a check."""
    found = list(check_server(facts(), LOCAL))
    assert {one.level for one in found} == {Level.OK}
    assert [one.check for one in found] == ["server", "eviction", "persistence", "access", "layout"]


@pytest.mark.parametrize("version", ["6.2.14", "5.0.0", "unknown"])
def test_an_old_server(version):
    """A server older than Redis 7.0 is an error that says what to upgrade to."""
    found = worst(check_server(facts(redis_version=version), LOCAL), "server")
    assert (found.level, version in found.message) == (Level.ERROR, True)
    assert "7.0" in found.advice


@pytest.mark.parametrize("version", ["7.0.0", "8.2.1", "10.0"])
def test_a_new_server(version):
    """Versions are compared as numbers: 10 is newer than 7."""
    assert worst(check_server(facts(redis_version=version), LOCAL), "server").level is Level.OK


def test_valkey_is_named():
    """A Valkey server is called by its own version, not by the one that it claims for clients."""
    found = worst(
        check_server(facts(server_name="valkey", valkey_version="9.1.2", redis_version="7.2.4"), LOCAL), "server"
    )
    assert "Valkey 9.1.2" in found.message


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random"])
def test_an_evicting_server(policy):
    """Any policy but noeviction is an error: it deletes queues and batches without a word (faults D05, G12)."""
    found = worst(check_server(facts(maxmemory_policy=policy), LOCAL), "eviction")
    assert (found.level, policy in found.message, "noeviction" in found.advice) == (Level.ERROR, True, True)


def test_no_append_only_file():
    """Without persistence there is a warning, with a file that cannot be written an error."""
    assert worst(check_server(facts(aof_enabled=0), LOCAL), "persistence").level is Level.WARNING
    assert worst(check_server(facts(aof_last_write_status="err"), LOCAL), "persistence").level is Level.ERROR


def test_a_replica():
    """A replica is an error that names its primary: it takes no writes (fault K03)."""
    found = worst(check_server(facts(role="slave", master_host="10.0.0.9", master_port=6379), LOCAL), "server")
    assert (found.level, "10.0.0.9:6379" in found.message) == (Level.ERROR, True)


def test_memory_runs_out():
    """A server that is nearly full is a warning; one without a limit is not."""
    assert worst(check_server(facts(maxmemory=100, used_memory=95), LOCAL), "memory").level is Level.WARNING
    assert "memory" not in levels(check_server(facts(maxmemory=0, used_memory=95), LOCAL))


@pytest.mark.parametrize(
    ("url", "config", "anybody", "level"),
    [
        ("redis://10.1.2.3/0", {}, True, Level.ERROR),
        ("redis://redis:6379/0", {}, True, Level.ERROR),
        ("redis://redis:6379/0", {}, None, Level.ERROR),
        ("redis://:pw@redis:6379/0", {}, None, Level.OK),
        ("redis://redis:6379/0?password=pw", {}, None, Level.OK),
        ("redis://:pw@redis:6379/0", {}, True, Level.ERROR),
        ("redis://:pw@redis:6379/0", {}, False, Level.OK),
        (LOCAL, {"bind": "127.0.0.1 -::1", "protected-mode": "no"}, True, Level.OK),
        (LOCAL, {"bind": "* -::*", "protected-mode": "yes"}, True, Level.OK),
        (LOCAL, {"bind": "* -::*", "protected-mode": "no"}, True, Level.ERROR),
        (LOCAL, {"bind": "", "protected-mode": "no"}, True, Level.ERROR),
        (LOCAL, {"bind": "192.0.2.7", "protected-mode": "no"}, False, Level.OK),
        ("redis://localhost/0", {}, True, Level.OK),
        ("unix:///run/redis.sock", {}, True, Level.OK),
    ],
)
def test_who_may_log_in(url, config, anybody, level):
    """A server that other machines reach without a password is an error, whatever URL we use ourselves (fault K03)."""
    found = worst(check_server(facts(config=config, anybody=anybody), url), "access")
    assert found.level is level


def test_passwords_are_hidden():
    """No finding shows the password of the URL."""
    found = list(check_server(facts(), "redis://user:geheim@redis:6379/0"))
    assert "geheim" not in json.dumps([one.to_dict() for one in found])


def test_another_layout():
    """Stored data of another layout is an error that names both numbers; an empty server is fine."""
    found = worst(check_server(facts(layout="999"), LOCAL), "layout")
    assert (found.level, "999" in found.message, str(LAYOUT) in found.message) == (Level.ERROR, True, True)
    assert worst(check_server(facts(layout=None), LOCAL), "layout").level is Level.OK


def test_no_server():
    """A server that does not answer is one error with the store's own words."""
    found = no_server(StoreUnavailable("Redis at redis://h/0 does not answer"))
    assert (found.level, found.subject, found.message) == (
        Level.ERROR,
        "server",
        "Redis at redis://h/0 does not answer",
    )


# ------------------------------------------------------------------------------------------- fleet
def test_workers():
    """Live workers are summed up; one that is silent is a warning of its own."""
    alive = WorkerInfo("a@h/1", 100.0, (("celery", 4), ("gpu", 4)), {})
    silent = WorkerInfo("b@h/2", 40.0, (("celery", 8),), {})
    lost, fleet = check_workers([alive, silent], 101.0, waiting=0)
    assert (lost.level, lost.subject, "61 s" in lost.message) == (Level.WARNING, "b@h/2", True)
    assert (fleet.level, fleet.message) == (Level.OK, "1 alive, 4 slots, queues celery, gpu")


@pytest.mark.parametrize(("waiting", "level"), [(0, Level.WARNING), (3, Level.ERROR)])
def test_no_workers(waiting, level):
    """Without workers there is a warning, and an error when batches wait for one; both say how to start one."""
    (found,) = check_workers([], 1.0, waiting=waiting)
    assert (found.level, "poimen worker" in found.advice) == (level, True)


# -------------------------------------------------------------------------------------------- audit
def audit(**state: Any) -> list[Finding]:
    """What is found on a stream in this state, at the server's time 1000."""
    return list(check_audit(StreamState(now=1000.0, **state), Settings(audit_backlog=10, audit_backlog_hard=20)))


SEALER = {"sealer": "token", "who": "h:/log", "alive": True, "beat": 999.0, "lease": 15.0, "sealed": 1234}


def test_dropped_audit_entries():
    """Dropped audit entries are a warning with their number."""
    assert [found.level for found in audit()] == [Level.OK]
    (found,) = audit(dropped=1234)
    assert (found.level, "1,234" in found.message) == (Level.WARNING, True)
    (_, found) = audit(dropped=1234, **SEALER)
    assert (found.level, "1,234" in found.message) == (Level.WARNING, True)


def test_audit_lag():
    """The lag is in entries and in seconds since the oldest was written."""
    assert lag_of(StreamState(now=1000.0, length=3, oldest="990500-0")) == Lag(3, 9.5)
    assert lag_of(StreamState(now=1000.0)) == Lag(0, 0.0)
    (found,) = audit(length=3, oldest="990500-0", **SEALER)
    assert (found.level, "1,234 lines" in found.message) == (Level.OK, True)
    assert "3 entries wait, the oldest for 9.5 s" in found.message
    assert audit(length=3, oldest="900000-0", **SEALER)[0].level is Level.WARNING


@pytest.mark.parametrize(("beat", "words"), [(0.0, "stopped"), (900.0, "last heard of 100 s ago")])
def test_a_sealer_that_is_gone(beat, words):
    """One that stopped, or died, is a warning; an error when entries wait for long. Both say what to do."""
    gone = {**SEALER, "alive": False, "beat": beat}
    (found,) = audit(**gone)
    assert (found.level, words in found.message) == (Level.WARNING, True)
    assert "`poimen audit seal`" in found.advice
    assert "--unregister" in found.advice
    assert audit(length=1, oldest="900000-0", **gone)[0].level is Level.ERROR


@pytest.mark.parametrize(("length", "words"), [(11, "dispatch is refused"), (21, "claim no more items")])
def test_audit_backlog(length, words):
    """Over a limit it is an error that says what is stopped; without a sealer there is no backlog."""
    (_, found) = audit(length=length, oldest="999000-0", **SEALER)
    assert (found.level, words in found.message) == (Level.ERROR, True)
    assert len(audit(length=length)) == 1


@pytest.mark.parametrize(("at", "level"), [(990.0, Level.ERROR), (-90_000.0, Level.WARNING)])
def test_audit_gap(at, level):
    """Entries that vanished unsealed are a failure for a day, and a warning for ever."""
    (_, found) = audit(vanished=7, vanished_at=at, **SEALER)
    assert (found.level, "7 entries" in found.message) == (level, True)


# ------------------------------------------------------------------------------------------- Celery
def conf(**changes):
    """An app as `Poimen("name")` makes it, on Redis, but for what is given."""
    app = Celery("shop", broker=LOCAL, backend=LOCAL, set_as_current=False)
    app.conf.update({**DEFAULTS, **changes})
    return app.conf


RABBIT = "amqp://guest@localhost//"


@pytest.mark.parametrize("broker", [LOCAL, RABBIT, "pyamqp://localhost//;amqp://other//"])
def test_our_own_defaults_are_quiet(broker):
    """The settings that a new app gets have no conflict, on Redis and on RabbitMQ."""
    app = Celery("shop", broker=broker, backend=LOCAL, set_as_current=False)
    app.conf.update(defaults_for(broker))
    assert [one.message for one in check_celery(app.conf) if one.level is not Level.OK] == []


def test_the_recommended_file_is_quiet():
    """The file of recommended settings has no conflict either."""
    recommended = importlib.import_module("config.celeryconfig")
    app = Celery("shop", broker=LOCAL, backend=LOCAL, set_as_current=False)
    app.config_from_object(recommended)
    assert [one.message for one in check_celery(app.conf) if one.level is not Level.OK] == []


def test_its_variant_for_rabbitmq_is_quiet():
    """So are the settings that it has for RabbitMQ, in comments; they are Python, and what a new app gets."""
    text = Path(importlib.import_module("config.celeryconfig").__file__).read_text(encoding="utf-8")
    block = text.partition("none of these exist. There:\n")[2].partition("\n\n")[0]
    variant = {}
    exec("\n".join(line.removeprefix("#").removeprefix(" ") for line in block.splitlines()), {}, variant)  # noqa: S102
    app = Celery("shop", broker=RABBIT, backend=LOCAL, set_as_current=False)
    app.config_from_object("config.celeryconfig")
    app.conf.update(variant)
    assert [one.message for one in check_celery(app.conf) if one.level is not Level.OK] == []
    ours = defaults_for(RABBIT)
    assert variant["broker_transport_options"] == ours["broker_transport_options"]
    assert {name: variant[name] for name in ("broker_heartbeat", "task_default_priority")} == {
        name: ours[name] for name in ("broker_heartbeat", "task_default_priority")
    }


def test_plain_celery():
    """Celery's defaults conflict in many places; each is a warning with the value to set, none an error."""
    found = list(check_celery(Celery("shop", broker=LOCAL, backend=LOCAL, set_as_current=False).conf))
    assert {"task_acks_late", "worker_disable_prefetch", "redis_socket_timeout"} <= {one.subject for one in found}
    assert all(one.level is Level.WARNING and one.advice.startswith(f"set {one.subject} = ") for one in found)


def test_another_broker_and_no_backend():
    """Rules about Redis are not held against another broker, and a missing result backend is fine."""
    app = Celery("shop", broker="amqp://rabbit", set_as_current=False)
    found = {one.subject: one.advice for one in check_celery(app.conf)}
    assert not {name for name in found if name.startswith(("redis_", "result_backend"))}
    assert {name for name in found if name.startswith("broker_transport")} == {
        "broker_transport_options['confirm_publish']", "broker_transport_options['read_timeout']",
    }  # fmt: skip
    assert not {"worker_disable_prefetch", "task_default_priority"} & found.keys()
    assert "task_acks_late" in found
    assert found["worker_prefetch_multiplier"] == "set worker_prefetch_multiplier = 1"
    app.conf.update(defaults_for("amqp://rabbit"))
    assert [one.level for one in check_celery(app.conf)] == [Level.OK]


def test_a_broker_from_the_environment(monkeypatch):
    """The broker counts that Celery uses, also when it comes from CELERY_BROKER_URL."""
    monkeypatch.setenv("CELERY_BROKER_URL", LOCAL)
    found = {one.subject for one in check_celery(Celery("shop", set_as_current=False).conf)}
    assert "worker_disable_prefetch" in found


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"task_acks_late": False}, "task_acks_late"),
        ({"task_reject_on_worker_lost": None}, "task_reject_on_worker_lost"),
        ({"worker_deduplicate_successful_tasks": True}, "worker_deduplicate_successful_tasks"),
        ({"worker_disable_prefetch": False}, "worker_disable_prefetch"),
        ({"accept_content": ["json", "pickle"]}, "accept_content"),
        ({"result_accept_content": ["pickle"]}, "accept_content"),
        ({"task_always_eager": True}, "task_always_eager"),
        ({"broker_connection_max_retries": 100}, "broker_connection_max_retries"),
        ({"result_expires": 60}, "result_expires"),
        ({"task_time_limit": 90_000}, "broker_transport_options['visibility_timeout']"),
        ({"result_chord_join_timeout": 20_000}, "broker_transport_options['visibility_timeout']"),
        ({"task_default_priority": None}, "task_default_priority"),
        ({"redis_socket_timeout": None}, "redis_socket_timeout"),
        ({"result_backend_max_retries": float("inf")}, "result_backend_max_retries"),
        (
            {"broker_transport_options": {**DEFAULTS["broker_transport_options"], "retry_on_timeout": True}},
            "broker_transport_options['retry_on_timeout']",
        ),
    ],
)  # fmt: skip
def test_each_rule(changes, setting):
    """Each setting that conflicts is named alone (faults B01, B02, A03, K01, C01, A04, E01, E03, C09, D02)."""
    assert [one.subject for one in check_celery(conf(**changes))] == [setting]


@pytest.mark.parametrize("expires", [0, None, 7 * 86_400])
def test_results_that_stay(expires):
    """Results that are kept for ever, or long enough, are no conflict."""
    assert [one.level for one in check_celery(conf(result_expires=expires))] == [Level.OK]


# ------------------------------------------------------------------------------------------- findings
def test_a_repaired_error_is_no_failure():
    """An error that was repaired does not make the doctor fail; one that stands does."""
    broken = Finding(Level.ERROR, "slots", "b", "broken", "repair it", repairable=True)
    assert broken.is_failure
    assert not Finding(Level.ERROR, "slots", "b", "broken", repaired=True).is_failure
    assert not Finding(Level.WARNING, "keys", "b", "left").is_failure
    assert broken.to_dict() == {
        "level": "error",
        "check": "slots",
        "subject": "b",
        "message": "broken",
        "advice": "repair it",
        "repairable": True,
        "repaired": False,
    }
