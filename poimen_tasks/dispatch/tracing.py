"""The trace that a dispatch is part of, as headers: carried once a batch, and found by the integrations in each item.

Nothing is imported unless the program has done so itself. OpenTelemetry writes what its propagators write
(`traceparent` as a rule), Sentry `sentry-trace` and `baggage`, as both do for a message of Celery.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

import msgpack

__all__ = ["current_trace", "pack_trace", "unpack_trace"]

log = logging.getLogger(__name__)

#: Most characters of one header; the W3C's own limit for baggage.
_MOST = 8192
_RESERVED = frozenset({"args", "kwargs", "id", "task", "headers", "retries", "errbacks", "callbacks"})


def current_trace() -> dict[str, str]:
    """Headers that continue the trace of this moment; empty when nobody traces."""
    headers: dict[str, str] = {}
    for asks in (_ask_opentelemetry, _ask_sentry):
        try:
            asks(headers)
        except Exception:
            # Tracing is not worth a dispatch.
            log.warning("the trace could not be read; the batch goes without", exc_info=True)
    return {name: value for name, value in headers.items() if _is_header(name, value)}


def pack_trace(headers: Mapping[str, str]) -> bytes:
    """As a batch's record stores it; empty when there is none."""
    return bytes(msgpack.packb(dict(headers))) if headers else b""


def unpack_trace(stored: bytes | None) -> dict[str, str]:
    """From a batch's record."""
    return dict(msgpack.unpackb(stored)) if stored else {}


def _ask_opentelemetry(headers: dict[str, str]) -> None:
    if "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry.propagate import inject

    inject(headers)


def _ask_sentry(headers: dict[str, str]) -> None:
    """As its own integration does for a message, if that is on."""
    sentry: Any = sys.modules.get("sentry_sdk")
    integration = None if sentry is None else sentry.get_client().get_integration("celery")
    if not getattr(integration, "propagate_traces", False):
        return
    trace, baggage = sentry.get_traceparent(), sentry.get_baggage()
    if trace:
        headers["sentry-trace"] = trace
    if baggage:
        others = [headers["baggage"]] if headers.get("baggage", baggage) != baggage else []
        headers["baggage"] = ",".join([*others, baggage])


def _is_header(name: Any, value: Any) -> bool:
    """True for a short text whose name hides nothing of a request."""
    return isinstance(name, str) and isinstance(value, str) and len(value) <= _MOST and name not in _RESERVED
