"""An app that Sentry and OpenTelemetry watch; run as a program it is the producer.

`TRACED_ORDER` says who is set up first, `TRACED_OUT` is the directory that takes what they would send.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sentry_sdk
from celery.signals import worker_process_init
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.transport import Transport

if TYPE_CHECKING:
    from sentry_sdk.envelope import Envelope

OUT = Path(os.environ["TRACED_OUT"])
ORDER = os.environ["TRACED_ORDER"]


def write(name: str, value: dict[str, Any]) -> None:
    """Append a line, whole."""
    with (OUT / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(value | {"pid": os.getpid()}, default=str) + "\n")


class ToFile(Transport):
    """Keeps envelopes instead of sending them."""

    def capture_envelope(self, envelope: Envelope) -> None:
        """One line an item."""
        for item in envelope.items:
            write("sentry", {"kind": item.type, "payload": item.payload.json})


class SpansToFile(SpanExporter):
    """Keeps spans instead of sending them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """One line a span."""
        for span in spans:
            write("spans", json.loads(span.to_json()))
        return SpanExportResult.SUCCESS


def watch() -> None:
    """Sentry with what it turns on by itself: its integrations for Celery and Redis among others."""
    sentry_sdk.init("https://key@sentry.invalid/1", transport=ToFile, traces_sample_rate=1.0)


def trace_process(**_: Any) -> None:
    """OpenTelemetry, in each process of its own, as its documents say."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SpansToFile()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


if ORDER == "sentry first":
    watch()

from poimen_tasks import Poimen, RetryPolicy  # noqa: E402 - who comes first is what is tested

if ORDER == "sentry last":
    watch()

worker_process_init.connect(trace_process, weak=False)
poimen = Poimen("traced")
app = poimen.celery
app.conf.task_default_queue = os.environ["TRACED_QUEUE"]


@app.task(name="traced.work")
def work(number: int) -> int:
    """Work."""
    return number


@app.task(name="traced.bad")
def bad() -> None:
    """Fail."""
    raise ValueError("bad item")


@poimen.task(name="traced.again", retry=RetryPolicy(max_attempts=2, initial=0.01), bind=True)
def again(self: Any) -> str:
    """Work at the second attempt."""
    if self.request.retries == 0:
        raise ConnectionError("first attempt")
    return "second"


class Called(app.Task):  # type: ignore[name-defined,misc]
    """A base with a `__call__`, which Sentry wraps otherwise."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


@app.task(name="traced.called", base=Called)
def called() -> None:
    """Fail, too."""
    raise KeyError("called item")


@app.task(name="traced.done")
def done(batch: str) -> str:
    """A callback."""
    return batch


def main() -> None:
    """Dispatch inside a transaction and a span; print which."""
    trace_process()
    calls = [*(work.s(number) for number in range(40)), bad.s(), again.s(), called.s()]
    with (
        trace.get_tracer("producer").start_as_current_span("nightly") as span,
        sentry_sdk.start_transaction(name="nightly", op="batch") as transaction,
    ):
        batch = poimen.dispatch(calls, on_complete=done.s())
        told = {
            "batch": batch.id,
            "otel_trace": f"0x{span.get_span_context().trace_id:032x}",
            "otel_span": f"0x{span.get_span_context().span_id:016x}",
            "sentry_trace": transaction.trace_id,
            "sentry_span": transaction.span_id,
        }
    report = batch.wait(timeout=60)
    batch.callback_result("on_complete", timeout=30)
    errors = {item: error.type for item, error in report.errors.items()}
    print(json.dumps(told | {"succeeded": report.succeeded, "errors": errors}))  # noqa: T201 - its answer


if __name__ == "__main__":
    main()
