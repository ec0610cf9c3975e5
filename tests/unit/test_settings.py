"""Settings: where they come from, what they allow, and that no password shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from redis import Redis
from redis.connection import parse_url

from poimen_tasks.errors import SettingsError
from poimen_tasks.settings import Settings, load_settings, mask_url, resolve_redis_url

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"POIMEN_{name.upper()}", raising=False)


def refused(**values: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings(**values)
    return str(caught.value)


def test_defaults() -> None:
    """The defaults are the documented ones; ten slots a batch among them (promise D2)."""
    found = Settings()
    assert (found.redis_url, found.broker_url, found.namespace) == (None, None, "poimen")
    assert (found.lease, found.quantum, found.tick, found.ticket_overdue) == (15.0, 0.1, 0.5, 2.0)
    assert (found.batch_concurrency, found.retention, found.audit_unsealed_limit) == (10, 86_400.0, 100_000)
    assert (found.connect_timeout, found.socket_timeout) == (5.0, 5.0)
    assert found.max_argument_bytes == found.max_result_bytes == 8 * 1024 * 1024
    assert (found.data_dir, found.audit_dir) == (Path(".poimen"), Path(".poimen/audit"))


def test_every_setting_is_described() -> None:
    """Each setting says in words what it allows, and its meaning stands in the docstring of the class."""
    for name, field in Settings.model_fields.items():
        assert field.description
        assert f"        {name}: " in (Settings.__doc__ or "")


@pytest.mark.parametrize("name", ["lease", "cache_max_entries"])
def test_order_of_sources(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A keyword beats the environment, that beats the app's configuration, and that beats the default."""
    conf = {f"poimen_{name}": 21, "task_routes": None}
    default = getattr(Settings(), name)
    assert getattr(load_settings(), name) == default
    assert getattr(load_settings(conf), name) == 21
    monkeypatch.setenv(f"POIMEN_{name.upper()}", "22")
    assert getattr(load_settings(conf), name) == 22
    assert getattr(load_settings(conf, **{name: 23}), name) == 23
    assert getattr(Settings(**{name: 23}), name) == 23


def test_none_and_empty_count_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """An override or a key that is None, and an empty variable, leave the next source its turn."""
    monkeypatch.setenv("POIMEN_QUANTUM", "")
    found = load_settings({"poimen_lease": 20, "poimen_quantum": 0.5, "poimen_namespace": None}, lease=None)
    assert (found.lease, found.quantum, found.namespace) == (20.0, 0.5, "poimen")


def test_from_a_celery_app() -> None:
    """`poimen_*` keys of a real Celery configuration are read."""
    app = Celery(set_as_current=False)
    app.conf.update(poimen_batch_concurrency=3)
    assert load_settings(app.conf).batch_concurrency == 3


def test_unknown_names_are_refused() -> None:
    """A misspelt keyword or key is refused, with the name that was probably meant."""
    assert refused(leese=1) == "leese: no such setting; did you mean lease?"
    with pytest.raises(SettingsError, match=r"^poimen_leese: no such setting; did you mean poimen_lease"):
        load_settings({"poimen_leese": 1})
    assert refused(xyzzy=1) == "xyzzy: no such setting"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("lease", 0.4, "seconds, at least 0.5, got 0.4"),
        ("lease", "soon", "seconds, at least 0.5, got 'soon'"),
        ("lease", float("nan"), "seconds, at least 0.5, got nan"),
        ("lease", float("inf"), "seconds, at least 0.5, got inf"),
        ("lease", True, "seconds, at least 0.5, got True"),
        ("quantum", 0.001, "seconds, over 0.001 and at most 10, got 0.001"),
        ("quantum", 10.5, "seconds, over 0.001 and at most 10, got 10.5"),
        ("tick", 8, "at most half of POIMEN_LEASE, 7.5, got 8"),
        ("tick", 0, "seconds, over 0 and at most half of POIMEN_LEASE, got 0"),
        ("batch_concurrency", 0, "a whole number from 1, got 0"),
        ("batch_concurrency", 1.5, "a whole number from 1, got 1.5"),
        ("batch_concurrency", True, "a whole number from 1, got True"),
        ("max_result_bytes", 2**30, "bytes, from 1 to 512 MiB, got 1073741824"),
        ("retention", 0, "seconds, over 0, got 0"),
        ("cache_ttl", -1, "seconds, at least 0 (0: for ever), got -1"),
        ("data_dir", 7, "a directory, got 7"),
        ("audit_dir", 7, "a directory, got 7"),
        ("broker_url", "localhost", "a URL, got 'localhost'"),
        ("redis_url", 7, "a redis://, rediss://, unix:// or redis+socket:// URL, got 7"),
    ],
)
def test_refused_in_words(name: str, value: Any, text: str) -> None:
    """An error names the variable, what it expects and what it got."""
    assert refused(**{name: value}) == f"POIMEN_{name.upper()}: expected {text}"


def test_all_faults_at_once() -> None:
    """One error tells all that is wrong, the environment included."""
    assert refused(lease=0, quantum=0).count("expected") == 2


def test_bad_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is out of its range is named like a keyword."""
    monkeypatch.setenv("POIMEN_LEASE", "0.1")
    assert refused() == "POIMEN_LEASE: expected seconds, at least 0.5, got '0.1'"


@given(st.text(max_size=70))
def test_namespace_rule(text: str) -> None:
    """A namespace is 1-64 ASCII letters, digits and `_.:-`, beginning with a letter or digit (fault H10)."""
    good = 0 < len(text) <= 64 and text[0].isalnum() and text.isascii() and not set(text) - set(_NAMESPACE)
    if good:
        assert Settings(namespace=text).namespace == text
    else:
        assert refused(namespace=text).startswith("POIMEN_NAMESPACE: expected 1-64 of")


_NAMESPACE = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-"


@given(st.floats(0.5, 1e6), st.floats(1e-3, 1e6))
def test_tick_fits_the_lease(lease: float, tick: float) -> None:
    """A given tick is at most half the lease; one that is not given shrinks with a short lease."""
    assert Settings(lease=lease).tick == min(0.5, lease / 2)
    if tick <= lease / 2:
        assert Settings(lease=lease, tick=tick).tick == tick
    else:
        assert "POIMEN_TICK" in refused(lease=lease, tick=tick)


def test_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The audit log lives below the data directory unless told otherwise; `~` is the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Settings(data_dir="~/state").audit_dir == tmp_path / "state" / "audit"
    assert Settings(data_dir="/d", audit_dir=None).audit_dir == Path("/d/audit")
    assert Settings(data_dir="/d", audit_dir="~/log").audit_dir == tmp_path / "log"


def test_frozen() -> None:
    """A setting cannot be changed after it was checked."""
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.lease = 3


@pytest.mark.parametrize(
    ("given_url", "url"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://u:p%40w@h/3?socket_timeout=5", "redis://u:p%40w@h/3?socket_timeout=5"),
        ("rediss://h/1?ssl_cert_reqs=CERT_NONE", "rediss://h/1?ssl_cert_reqs=none"),
        ("redis+socket:///run/redis.sock", "unix:///run/redis.sock"),
        ("redis+socket:///run/redis.sock?virtual_host=2", "unix:///run/redis.sock?db=2"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock?db=2"),
    ],
)
def test_redis_url_is_one_for_the_client(given_url: str, url: str) -> None:
    """A URL in Celery's form becomes one that redis-py takes."""
    found = Settings(redis_url=given_url).redis_url
    assert found == url
    assert Redis.from_url(found).get_connection_kwargs()


def test_translated_socket_means_the_same_database() -> None:
    """redis-py reads path and database out of a translated socket URL."""
    found = Settings(redis_url="redis+socket:///run/redis.sock?virtual_host=2").redis_url
    read = parse_url(found)
    assert (read["path"], read["db"]) == ("/run/redis.sock", 2)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"http://u:{SECRET}@h", "redis://, rediss://, unix:// or redis+socket:// URL"),
        (f"u:{SECRET}@h:6379", "redis://, rediss://, unix:// or redis+socket:// URL"),
        (f"redis://:{SECRET}@h:99999", "a port from 0 to 65535"),
        (f"redis://:a/{SECRET}@h:6379", "write @ : / in a password as %40 %3A %2F"),
        (f"redis://:{SECRET}@h/zero", "the number of a database"),
        (f"redis://:{SECRET}@h?protocol=3", "no option 'protocol'"),
        (f"redis://:{SECRET}@h?decode_responses=true", "no option 'decode_responses'"),
        (f"unix://?password={SECRET}", "unix:///path/of/the/socket"),
    ],
)
def test_bad_redis_urls(url: str, text: str) -> None:
    """A malformed URL is refused with the reason, without its password, and so is one that would change the client."""
    error = refused(redis_url=url)
    assert error.startswith("POIMEN_REDIS_URL: expected ")
    assert text in error
    assert SECRET not in error


def test_password_not_in_the_traceback() -> None:
    """The error about a bad setting drags along no exception that holds the password."""
    with pytest.raises(SettingsError) as caught:
        Settings(redis_url=f"http://u:{SECRET}@h")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@given(
    scheme=st.sampled_from(["redis", "rediss", "amqp", "unix"]),
    user=st.from_regex(r"[A-Za-z0-9_.%-]{0,6}", fullmatch=True),
    prefix=st.text("ab@:/?#;&=[]% ", max_size=6),
    suffix=st.sampled_from(["@h", "@h:6379/0", "@h/0?db=1", "@h/0?x=a@b"]),
)
def test_no_password_survives_masking(scheme: str, user: str, prefix: str, suffix: str) -> None:
    """Whatever characters a password holds, encoded or not, `mask_url` hides all of it."""
    url = f"{scheme}://{user}:{prefix}{SECRET}{suffix}"
    assert SECRET not in mask_url(url)
    assert SECRET not in repr(Settings(broker_url=url))
    assert SECRET not in str(Settings(broker_url=url))
    assert SECRET not in json.dumps(Settings(broker_url=url).to_dict())


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        (f"redis://:{SECRET}@h:6379/0", "redis://:***@h:6379/0"),
        (f"redis://u:{SECRET}@h", "redis://u:***@h"),
        (f"redis://{SECRET}@h", "redis://***@h"),
        (f"u:{SECRET}@h", "***@h"),
        (f"unix:///s?db=1&password={SECRET}", "unix:///s?db=1&password=***"),
        (f"rediss://h?ssl_password={SECRET}&db=1", "rediss://h?ssl_password=***&db=1"),
        (f"redis://:{SECRET}@a;redis://:{SECRET}@b", "redis://:***@a;redis://:***@b"),
        ("redis://h:6379/0", "redis://h:6379/0"),
    ],
)
def test_masked_forms(url: str, masked: str) -> None:
    """Host, port, database and user name stay readable where it is clear that they are no secret."""
    assert mask_url(url) == masked


REDIS = "redis://broker/1"


@pytest.mark.parametrize(
    ("settings", "broker", "backend", "url"),
    [
        ({"redis_url": "redis://own/0"}, REDIS, REDIS, "redis://own/0"),
        ({}, REDIS, "redis://backend/2", REDIS),
        ({}, [REDIS], None, REDIS),
        ({}, f"{REDIS};{REDIS}", None, REDIS),
        ({}, "amqp://h//", "redis://backend/2", "redis://backend/2"),
        ({}, None, "rediss://b/2?ssl_cert_reqs=CERT_REQUIRED", "rediss://b/2?ssl_cert_reqs=required"),
        ({}, "redis+socket:///s?virtual_host=1", None, "unix:///s?db=1"),
        ({"broker_url": "redis://mine/3"}, REDIS, None, "redis://mine/3"),
        ({"broker_url": "amqp://h"}, None, "redis://backend/2", "redis://backend/2"),
        ({}, "redis://h/1?visibility_timeout=9&protocol=3&db=2", None, "redis://h/1?db=2"),
    ],
)
def test_redis_from_the_app(settings: dict[str, Any], broker: Any, backend: Any, url: str) -> None:
    """The Redis URL is the setting, else the app's Redis broker, else its Redis result backend, for redis-py."""
    assert resolve_redis_url(Settings(**settings), broker_url=broker, result_backend=backend) == url


@pytest.mark.parametrize("backend", [None, "rpc://", "redis", object(), "db+sqlite:///x"])
def test_no_redis_anywhere(backend: Any) -> None:
    """Without any Redis the error says which variable to set, and shows no password."""
    with pytest.raises(SettingsError, match=r"POIMEN_REDIS_URL: not set.*; set it, as redis:") as caught:
        resolve_redis_url(Settings(), broker_url=f"amqp://u:{SECRET}@h", result_backend=backend)
    assert SECRET not in str(caught.value)


def test_several_redis_brokers() -> None:
    """A list of different Redis brokers is no single home for the state; one has to be named."""
    with pytest.raises(SettingsError, match="expected one Redis, got 2 from the broker"):
        resolve_redis_url(Settings(), broker_url=["redis://a", "redis://b"])


def test_malformed_broker() -> None:
    """A broker URL that names no database is refused where it came from, without its password."""
    with pytest.raises(SettingsError, match="from the broker") as caught:
        resolve_redis_url(Settings(), broker_url=f"redis://:{SECRET}@h/zero")
    assert SECRET not in str(caught.value)


def test_to_dict_is_plain() -> None:
    """`to_dict` is ready for JSON and rebuilds the same settings."""
    settings = Settings(redis_url="redis://h/0", lease=20)
    data = json.loads(json.dumps(settings.to_dict()))
    assert Settings(**{name: value for name, value in data.items() if value is not None}) == settings
