"""The trace around a dispatch as headers: asked of OpenTelemetry and Sentry only where the program has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from opentelemetry import baggage, context, trace

from poimen_tasks.dispatch.tracing import current_trace, pack_trace, unpack_trace

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331


@pytest.fixture
def span() -> Iterator[None]:
    """Inside a span of OpenTelemetry that has baggage."""
    told = trace.SpanContext(TRACE, SPAN, is_remote=False, trace_flags=trace.TraceFlags(1))
    around = baggage.set_baggage("shop", "north", trace.set_span_in_context(trace.NonRecordingSpan(told)))
    token = context.attach(around)
    yield
    context.detach(token)


def sentry(*, propagates: Any = True, baggage: Any = "sentry-a=1", fails: bool = False) -> ModuleType:
    """What we ask of Sentry; the real one would change Celery for the whole test run."""

    def traceparent() -> str:
        if fails:
            raise RuntimeError("no scope")
        return "abc-def-1"

    module: Any = ModuleType("sentry_sdk")
    integration = None if propagates is None else SimpleNamespace(propagate_traces=propagates)
    module.get_client = lambda: SimpleNamespace(get_integration=lambda _name: integration)
    module.get_traceparent = traceparent
    module.get_baggage = lambda: baggage
    return module  # type: ignore[no-any-return]


def test_nobody_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either there are no headers, and nothing to store; neither is imported for the question."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "sentry_sdk")]:
        monkeypatch.delitem(sys.modules, name)
    assert current_trace() == {}
    assert pack_trace({}) == b""
    assert unpack_trace(None) == unpack_trace(b"") == {}
    assert "opentelemetry" not in sys.modules


def test_no_span_is_no_header() -> None:
    """OpenTelemetry that is there but has no span adds nothing."""
    assert current_trace() == {}


@pytest.mark.usefixtures("span")
def test_opentelemetry() -> None:
    """The propagators' own headers, as in a message."""
    assert current_trace() == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-01", "baggage": "shop=north"}


@pytest.mark.usefixtures("span")
def test_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both leave their headers; baggage is joined, and comes back from the record as it was."""
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry())
    headers = current_trace()
    assert (headers["sentry-trace"], headers["baggage"]) == ("abc-def-1", "shop=north,sentry-a=1")
    assert headers["traceparent"].startswith("00-")
    assert unpack_trace(pack_trace(headers)) == headers


@pytest.mark.parametrize("propagates", [None, False])
def test_sentry_that_does_not_propagate(monkeypatch: pytest.MonkeyPatch, propagates: Any) -> None:
    """Without its Celery integration, or told not to, Sentry adds nothing."""
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry(propagates=propagates))
    assert current_trace() == {}


def test_tracing_that_fails_costs_no_dispatch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error of theirs is logged, and the batch goes without."""
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry(fails=True))
    assert current_trace() == {}
    assert "the batch goes without" in caplog.text


def test_headers_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Baggage over the W3C's limit is left out, the trace stays."""
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry(baggage="x" * 9000))
    assert current_trace() == {"sentry-trace": "abc-def-1"}
