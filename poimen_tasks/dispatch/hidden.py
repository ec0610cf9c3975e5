"""Callbacks as they are stored with a batch: each a hidden batch of one item, opened by the script that ends it.

A plain task signature is that item itself. Any other canvas, a step that is a batch, and a signature with an option
that a hidden item does not have, as `countdown`, is published as it is by an item of `poimen.callback`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgpack
from celery.canvas import maybe_signature
from kombu.exceptions import OperationalError
from kombu.utils import json

from poimen_tasks import codec
from poimen_tasks.dispatch.collecting import collect_of, publish_until_collected
from poimen_tasks.dispatch.routing import ROUTE_OPTIONS, Router
from poimen_tasks.dispatch.signatures import CANVAS, EACH_TASK, INTERNAL_OPTIONS, plain_signature
from poimen_tasks.errors import SerializationError, StoreUnavailable
from poimen_tasks.store.chunk_blob import KIND_FULL, encode_chunk
from poimen_tasks.store.scripts import pack_parts

if TYPE_CHECKING:
    from celery import Celery

    from poimen_tasks.dispatch.runtime import Runtime

__all__ = ["CALLBACK_TASK", "KINDS", "encode_callback", "hidden_id", "pack_canvas", "register_callback_task"]

#: The task that publishes a callback which is a canvas.
CALLBACK_TASK = "poimen.callback"

#: Argument of `dispatch` → name of the callback in the store.
KINDS = {"on_success": "success", "on_failure": "failure", "on_complete": "complete"}

_PUBLISHED = frozenset({*CANVAS, EACH_TASK})
_OPTIONS = INTERNAL_OPTIONS.union(ROUTE_OPTIONS, ("ignore_result",))


def hidden_id(batch: str, kind: str, round_: int) -> str:
    """The id of a callback's hidden batch; `@` cannot be part of a user's id."""
    return f"{batch}@{kind}.{round_}"


def register_callback_task(runtime: Runtime) -> None:
    """Register the task that publishes a canvas given as a callback."""
    app = runtime.app

    @app.task(
        name=CALLBACK_TASK,
        bind=True,
        ignore_result=True,
        typing=False,
        shared=False,
        # Nobody else publishes it: while the broker is away it is tried again.
        autoretry_for=(OperationalError, OSError, StoreUnavailable),
        retry_backoff=True,
        retry_backoff_max=30,
        max_retries=None,
    )
    def publish_canvas(callback: Any, *arguments: Any) -> str:
        """Called with the canvas last, and before it what the callback is given."""
        *given, canvas = arguments
        made: Any = maybe_signature(json.loads(canvas) if isinstance(canvas, str) else canvas, app=app)
        collect = collect_of(made)
        if collect is not None:
            return publish_until_collected(runtime, callback, made, collect)
        return str(made.apply_async(tuple(given)).id)


def pack_canvas(canvas: Any) -> dict[str, Any] | str:
    """A canvas that came in a message, as an argument of the task that publishes it.

    What this package's codec does not carry, as a date without a time zone, travels as Celery's JSON does.

    Raises:
        SerializationError: neither of them carries it.
    """
    plain: dict[str, Any] = plain_signature(canvas)
    try:
        codec.encode(plain, what="canvas")
    except SerializationError as error:
        try:
            return str(json.dumps(plain))
        except (TypeError, ValueError):
            raise error from None
    return plain


def encode_callback(app: Celery, signature: Mapping[str, Any], now: float) -> bytes:
    """A callback's partition and chunk, as the record of its batch stores them.

    Args:
        app: the Celery app that routes it.
        signature: plain values, as a `Plan` holds them.
        now: the store's time, seconds since 1970.
    """
    router = Router(app)
    options = dict(signature.get("options") or {})
    extras: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    asked = {name for name, value in options.items() if value is not None}
    if signature["task"] in _PUBLISHED or asked - _OPTIONS:
        task, args = app.tasks[CALLBACK_TASK], [dict(signature)]
        number = router.number(task, {}, args, kwargs)
    else:
        task = app.tasks[signature["task"]]
        args, kwargs = list(signature.get("args") or ()), dict(signature.get("kwargs") or {})
        number = router.number(task, {name: options.get(name) for name in ROUTE_OPTIONS}, args, kwargs)
        if signature.get("immutable"):
            extras["im"] = True
        for name, short in (("link", "cb"), ("link_error", "eb")):
            if options.get(name):
                linked = options[name]
                extras[short] = list(linked) if isinstance(linked, list | tuple) else [linked]
    calls = codec.encode_many([[args, kwargs]], name=lambda _i: f"callback {signature['task']}", limit=None)
    chunk = encode_chunk(
        enqueued=now, parts=number, kind=KIND_FULL, calls=calls, extras=[(0, extras)] if extras else None
    )
    return bytes(msgpack.packb({"parts": pack_parts(router.parts), "chunk": chunk}, use_bin_type=False))
