"""Every setting: its default, its unit, its range, and where it comes from.

A keyword beats a `POIMEN_*` variable of the environment, that beats a `poimen_*` key of the Celery app's configuration,
and that beats the default. Everything is checked once, here; an error reads `POIMEN_LEASE: expected ..., got ...`.
Passwords in URLs show in no text that this module makes.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from poimen_tasks._urls import REDIS_SCHEMES, URL_RULE, client_url, mask_url, split_urls
from poimen_tasks.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

__all__ = ["Settings", "load_settings", "mask_url", "resolve_redis_url"]

_PREFIX = "POIMEN_"
_CONF_PREFIX = "poimen_"
_MIB = 1024 * 1024
_TICK = 0.5


def _seconds(
    default: float | None, text: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None
) -> Any:
    return Field(default=default, description=text, allow_inf_nan=False, ge=ge, gt=gt, le=le)


def _count(default: int, text: str, most: int | None = None) -> Any:
    return Field(default=default, description=text, ge=1, le=most)


def _derived(text: str) -> Any:
    """A default that a validator takes from another setting."""
    return Field(default=None, description=text)


class Settings(BaseSettings):
    """The checked settings; frozen. An unknown keyword is refused.

    Attributes:
        redis_url: the one Redis that holds the state. None: taken from the broker or the result backend.
        broker_url: Celery's broker. None: the Redis URL.
        namespace: first part of every Redis key.
        lease: seconds that a lane may be silent before its items go to another.
        quantum: seconds of work after which a lane lets waiting messages have its slot.
        batch_concurrency: slots of a batch that names no concurrency.
        retention: seconds that a batch stays readable after it is over.
        data_dir: directory of everything kept on disk; snapshots below.
        audit_dir: directory of the audit log.
        tick: seconds between two rounds of the keeper, at most half the lease.
        max_argument_bytes: most bytes of the encoded arguments of one item.
        max_result_bytes: most bytes of the encoded result of one item.
        connect_timeout: seconds to wait for a connection to Redis.
        socket_timeout: seconds to wait for a reply of Redis.
        audit_unsealed_limit: audit entries kept in Redis while no sealer has ever registered.
        audit_backlog: audit entries that may wait for a registered sealer before dispatch is refused.
        audit_backlog_hard: the same, before running batches claim no more items.
        audit_inline_bytes: longest field of an audit event that stands on its line; longer ones are kept by digest.
        audit_max_bytes: most bytes of one audit event that is recorded.
        ticket_overdue: seconds after which a published ticket that nobody took is looked for.
        item_events_rate: items a second whose task events one process sends; others that failed or retried are extra.
        cache_max_entries: most entries of the result cache.
        cache_max_bytes: most bytes of the result cache.
        cache_ttl: seconds that a cached result is served; 0 is for ever.
        audit_cache_hits: an audit entry for hits of the cache too, which otherwise are only counted.
        allow_eviction: let a worker start on a Redis that deletes keys when its memory is short.
        allow_open_server: let a worker start on a Redis that other machines reach without a password.
        snapshot_keep: how many snapshots of a workflow are kept.
        snapshot_on_pause: take a snapshot of a paused workflow when none of its items runs any more.
        shutdown_grace: seconds that running items may take after SIGTERM until they are asked to stop. None: no end.
        restore_on_start: a worker that starts on an empty store restores the snapshots of its data directory.
        pause_plain_calls: plain messages of tasks ask whether a pause covers them before they start.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", validate_default=True
    )

    redis_url: str | None = Field(default=None, description=URL_RULE)
    broker_url: str | None = Field(default=None, description="a URL")
    namespace: str = Field(
        default="poimen",
        pattern=r"\A[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}\z",
        description="1-64 of A-Z a-z 0-9 _ . : - beginning with a letter or digit",
    )
    lease: float = _seconds(15.0, "seconds, at least 0.5", ge=0.5)
    quantum: float = _seconds(0.1, "seconds, over 0.001 and at most 10", gt=0.001, le=10)
    batch_concurrency: int = _count(10, "a whole number from 1")
    retention: float = _seconds(86_400.0, "seconds, over 0", gt=0)
    data_dir: Path = Field(default=Path(".poimen"), description="a directory")
    audit_dir: Path = _derived("a directory")
    tick: float = _seconds(None, "seconds, over 0 and at most half of POIMEN_LEASE", gt=0)
    max_argument_bytes: int = _count(8 * _MIB, "bytes, from 1 to 512 MiB", 512 * _MIB)
    max_result_bytes: int = _count(8 * _MIB, "bytes, from 1 to 512 MiB", 512 * _MIB)
    connect_timeout: float = _seconds(5.0, "seconds, over 0", gt=0)
    socket_timeout: float = _seconds(5.0, "seconds, over 0", gt=0)
    audit_unsealed_limit: int = _count(100_000, "a whole number from 1")
    audit_backlog: int = _count(500_000, "a whole number from 1")
    audit_backlog_hard: int = _count(2_000_000, "a whole number from POIMEN_AUDIT_BACKLOG")
    audit_inline_bytes: int = _count(64 * 1024, "bytes, from 1 to 16 MiB", 16 * _MIB)
    audit_max_bytes: int = _count(8 * _MIB, "bytes, from 1 to 256 MiB", 256 * _MIB)
    ticket_overdue: float = _seconds(2.0, "seconds, over 0", gt=0)
    item_events_rate: float = _seconds(100.0, "a number, at least 0", ge=0)
    cache_max_entries: int = _count(100_000, "a whole number from 1")
    cache_max_bytes: int = _count(256 * _MIB, "bytes, at least 1")
    cache_ttl: float = _seconds(86_400.0, "seconds, at least 0 (0: for ever)", ge=0)
    audit_cache_hits: bool = Field(default=False, description="true or false")
    allow_eviction: bool = Field(default=False, description="true or false")
    allow_open_server: bool = Field(default=False, description="true or false")
    snapshot_keep: int = _count(2, "a whole number from 1 to 100", 100)
    snapshot_on_pause: bool = Field(default=True, description="true or false")
    shutdown_grace: float | None = _seconds(None, "seconds, at least 0", ge=0)
    restore_on_start: bool = Field(default=False, description="true or false")
    pause_plain_calls: bool = Field(default=True, description="true or false")

    def __init__(self, **values: Any) -> None:
        """Take settings as keywords, and the rest from the environment.

        Raises:
            SettingsError: a value is out of its range, or a keyword is unknown.
        """
        try:
            super().__init__(**values)
        except ValidationError as error:
            text = "; ".join(map(_in_words, error.errors(include_url=False)))
        else:
            return
        raise SettingsError(text)  # outside of the handler: the original shows the input, passwords and all

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_values(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError("")
        return value

    @field_validator("redis_url")
    @classmethod
    def _translate_redis_url(cls, value: str | None) -> str | None:
        return None if value is None else client_url(value, strict=True)

    @field_validator("broker_url")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value:
            raise ValueError("")
        return value

    @field_validator("audit_dir", mode="before")
    @classmethod
    def _below_data_dir(cls, value: Any, info: ValidationInfo) -> Any:
        return info.data.get("data_dir", Path()) / "audit" if value is None else value

    @field_validator("data_dir", "audit_dir")
    @classmethod
    def _at_home(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("audit_backlog_hard")
    @classmethod
    def _above_soft_limit(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("audit_backlog", value):
            raise ValueError(f"at least POIMEN_AUDIT_BACKLOG, {info.data['audit_backlog']}")
        return value

    @field_validator("tick", mode="before")
    @classmethod
    def _fits_lease(cls, value: Any, info: ValidationInfo) -> Any:
        return min(_TICK, info.data.get("lease", 1.0) / 2) if value is None else value

    @field_validator("tick")
    @classmethod
    def _below_lease(cls, value: float, info: ValidationInfo) -> float:
        if value > info.data.get("lease", value * 2) / 2:
            raise ValueError(f"at most half of POIMEN_LEASE, {info.data['lease'] / 2:g}")
        return value

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; passwords masked."""
        return {name: _plain(value) for name, value in self}

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """What `repr` shows: everything, passwords masked."""
        yield from self.to_dict().items()


def load_settings(conf: Mapping[str, Any] | None = None, **overrides: Any) -> Settings:
    """Gather the settings of one app: `overrides`, then `POIMEN_*`, then `poimen_*` keys of `conf`, then the defaults.

    An override or a key that is None counts as not given.

    Raises:
        SettingsError: a value is out of its range, or a keyword or a `poimen_*` key is unknown.
    """
    environment = {name.upper() for name, value in os.environ.items() if value}
    given = {
        name: value for name, value in _configured(conf or {}).items() if f"{_PREFIX}{name.upper()}" not in environment
    }
    given.update((name, value) for name, value in overrides.items() if value is not None)
    return Settings(**given)


def resolve_redis_url(settings: Settings, *, broker_url: Any = None, result_backend: Any = None) -> str:
    """Find the URL of the Redis that holds the state.

    Args:
        settings: their `redis_url` wins, then their `broker_url` if that is a Redis.
        broker_url: the Celery app's broker: a URL, several in one string or a list, or None.
        result_backend: the Celery app's result backend; anything but a URL is passed over.

    Returns:
        A URL for redis-py; a `redis+socket://` one is translated to `unix://`.

    Raises:
        SettingsError: none of them is one Redis.
    """
    if settings.redis_url:
        return settings.redis_url
    for origin, source in (("broker", settings.broker_url), ("broker", broker_url), ("result backend", result_backend)):
        found = [url for url in split_urls(source) if url.split("://")[0] in REDIS_SCHEMES]
        if len(set(found)) > 1:
            count = f"{len(found)} from the {origin}"
            raise SettingsError(f"POIMEN_REDIS_URL: expected one Redis, got {count}; set POIMEN_REDIS_URL")
        if found:
            return _from_celery(found[0], origin)
    raise SettingsError(
        f"POIMEN_REDIS_URL: not set, and neither broker ({_shown(broker_url)}) nor result backend "
        f"({_shown(result_backend)}) is a Redis; set it, as redis://localhost:6379/0, or start a server with "
        "`poimen up -A APP`"
    )


def _from_celery(url: str, origin: str) -> str:
    try:
        return client_url(url, strict=False)
    except ValueError as error:
        raise SettingsError(f"POIMEN_REDIS_URL: expected {error}, got {mask_url(url)!r} from the {origin}") from None


def _configured(conf: Mapping[str, Any]) -> dict[str, Any]:
    keys = [key for key in conf if key.startswith(_CONF_PREFIX)]
    values = {key.removeprefix(_CONF_PREFIX): conf[key] for key in keys if conf[key] is not None}
    for name in sorted(values.keys() - Settings.model_fields.keys()):
        raise SettingsError(f"{_CONF_PREFIX}{name}: {_unknown(name, _CONF_PREFIX)}")
    return values


def _in_words(error: ErrorDetails) -> str:
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        return f"{name}: {_unknown(name)}"
    reason = str(error["ctx"]["error"]) if error["type"] == "value_error" else ""
    expected = reason or Settings.model_fields[name].description
    return f"{_PREFIX}{name.upper()}: expected {expected}, got {_shown(error['input'])}"


def _unknown(name: str, prefix: str = "") -> str:
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    return f"no such setting{f'; did you mean {prefix}{near[0]}?' if near else ''}"


def _shown(value: Any) -> str:
    text = mask_url(repr(value))
    return text if len(text) <= 120 else f"{text[:117]}..."


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return mask_url(value) if isinstance(value, str) else value
