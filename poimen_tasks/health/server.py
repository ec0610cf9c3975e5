"""Checks of the Redis server."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from poimen_tasks.errors import PoimenError
from poimen_tasks.health.finding import Finding, Level
from poimen_tasks.settings import mask_url
from poimen_tasks.store.keys import LAYOUT
from poimen_tasks.store.survey import ServerFacts

__all__ = ["check_access", "check_eviction", "check_server", "no_server"]

_LEAST = (7, 0)
_FULL = 0.9
_SUBJECT = "server"


def no_server(error: PoimenError) -> Finding:
    """The one finding about a server that cannot be asked."""
    return Finding(Level.ERROR, "server", _SUBJECT, str(error))  # the error says what to do


def check_server(facts: ServerFacts, url: str) -> Iterator[Finding]:
    """Version, role, eviction, persistence, memory, access and layout of the server at `url`."""
    yield _version(facts, mask_url(url))
    yield from _role(facts)
    yield check_eviction(facts)
    yield from _persistence(facts)
    yield from _memory(facts)
    yield check_access(facts, url)
    yield _layout(facts)


def _version(facts: ServerFacts, subject: str) -> Finding:
    spoken = str(facts.info.get("redis_version", "0"))
    name = str(facts.info.get("server_name") or "redis").capitalize()
    own = facts.info.get("valkey_version")
    shown = f"{name} {own} (as Redis {spoken})" if own else f"{name} {spoken}"
    if tuple(int(part) if part.isdigit() else 0 for part in spoken.split(".")[:2]) < _LEAST:
        return Finding(
            Level.ERROR, "server", subject, f"{shown} is too old: Redis 7.0 is the oldest that works",
            "upgrade to Redis 7.0 or newer, or to Valkey",
        )  # fmt: skip
    return Finding(Level.OK, "server", subject, f"{shown} answers")


def _role(facts: ServerFacts) -> Iterator[Finding]:
    if facts.info.get("role") == "slave":
        master = f"{facts.info.get('master_host')}:{facts.info.get('master_port')}"
        yield Finding(
            Level.ERROR, "server", _SUBJECT, f"it is a replica of {master} and takes no writes",
            "point POIMEN_REDIS_URL at the primary; if nobody made it a replica, the server was open to others",
        )  # fmt: skip


def check_eviction(facts: ServerFacts) -> Finding:
    """Whether the server deletes what it holds when its memory is short."""
    policy = str(facts.info.get("maxmemory_policy", "unknown"))
    if policy == "noeviction":
        return Finding(Level.OK, "eviction", _SUBJECT, "maxmemory-policy is noeviction")
    return Finding(
        Level.ERROR, "eviction", _SUBJECT,
        f"maxmemory-policy is {policy}: when memory is short the server deletes queues and batches without a word",
        "set it to noeviction: `redis-cli config set maxmemory-policy noeviction`, and in the server's configuration",
    )  # fmt: skip


def _persistence(facts: ServerFacts) -> Iterator[Finding]:
    if not facts.info.get("aof_enabled"):
        yield Finding(
            Level.WARNING, "persistence", _SUBJECT, "the append-only file is off: a restart loses what was not saved",
            "`redis-cli config set appendonly yes`, and in the server's configuration",
        )  # fmt: skip
    elif facts.info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            Level.ERROR, "persistence", _SUBJECT, "the last write to the append-only file failed",
            "look at the server's log and the space on its disk",
        )  # fmt: skip
    else:
        yield Finding(Level.OK, "persistence", _SUBJECT, "the append-only file is on")


def _memory(facts: ServerFacts) -> Iterator[Finding]:
    most, used = int(facts.info.get("maxmemory", 0)), int(facts.info.get("used_memory", 0))
    if most and used > most * _FULL:
        yield Finding(
            Level.WARNING, "memory", _SUBJECT, f"{used / most:.0%} of maxmemory is in use; full, it takes no work",
            "raise maxmemory, or lower POIMEN_RETENTION so that finished batches leave earlier",
        )  # fmt: skip


def check_access(facts: ServerFacts, url: str) -> Finding:
    """Whether strangers can reach the server at `url` without a password."""
    parts = urlsplit(url)
    secret = parts.password or "password" in parse_qs(parts.query)
    anybody = facts.open if facts.open is not None else not secret
    if parts.scheme == "unix":
        return Finding(Level.OK, "access", _SUBJECT, "it is reached by a Unix socket")
    if not anybody:
        return Finding(Level.OK, "access", _SUBJECT, "it asks for a password")
    if not _is_loopback(parts.hostname or "localhost") or _listens_outside(facts.config):
        return Finding(
            Level.ERROR, "access", _SUBJECT,
            "other machines reach it without a password: whoever does can read, change and delete everything",
            "set `requirepass` (or an ACL) and put the password into POIMEN_REDIS_URL, or bind the server to 127.0.0.1",
        )  # fmt: skip
    return Finding(Level.OK, "access", _SUBJECT, "it asks for no password, and only this machine reaches it")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _listens_outside(config: dict[str, str]) -> bool:
    """Protected mode turns strangers away only while no password is set, which is the case that is asked about."""
    if "bind" not in config or config.get("protected-mode") == "yes":
        return False
    addresses = [word.removeprefix("-") for word in config["bind"].split()]
    return not addresses or not all(_is_loopback(address) for address in addresses)


def _layout(facts: ServerFacts) -> Finding:
    if facts.layout is None:
        return Finding(Level.OK, "layout", _SUBJECT, "nothing is stored yet")
    if facts.layout == str(LAYOUT):
        return Finding(Level.OK, "layout", _SUBJECT, f"the stored data has layout {LAYOUT}")
    return Finding(
        Level.ERROR, "layout", _SUBJECT, f"the stored data has layout {facts.layout}, this version reads {LAYOUT}",
        "use the version of Poimen that wrote it, or another POIMEN_NAMESPACE; upgrade workers before producers",
    )  # fmt: skip
