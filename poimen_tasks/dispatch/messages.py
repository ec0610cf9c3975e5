"""Whole messages of plain calls, kept while a pause holds them and published again as they came.

A kept message is what the broker delivered: headers, body in the serializer it came in, and where it goes. Nothing is
made anew, so no hook of a producer runs twice, and every option that was put on it is still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kombu import serialization
from kombu.utils import json

from poimen_tasks import codec

if TYPE_CHECKING:
    from kombu import Producer

__all__ = [
    "BATCH_HEADER",
    "PARKED_HEADER",
    "WAITED_HEADER",
    "WORKFLOW_HEADER",
    "groups_of",
    "is_kept_message",
    "pack_message",
    "publish_message",
    "returned_key",
    "waited_header",
]

#: Headers of a message that was sent from inside an item, or from a plain call that has them: what it belongs to.
WORKFLOW_HEADER, BATCH_HEADER = "poimen_workflow", "poimen_batch"

#: Header of a message that was parked by a pause: `<retries so far>:<key it was parked under>`.
PARKED_HEADER = "poimen_parked"

#: Header of a message that waited for the result of an equal call; see `waited_header`.
WAITED_HEADER = "poimen_waited"

_JSON = "application/json"
_EMBEDDED = ("callbacks", "errbacks", "chain", "chord")
# What a worker adds to the headers of a message, and what says only how it travelled.
_ADDED = frozenset({
    *_EMBEDDED, "properties", "reply_to", "correlation_id", "hostname", "delivery_info", "args", "kwargs", "is_eager",
    "loglevel", "logfile", "redelivered", "compression", PARKED_HEADER,
})  # fmt: skip
_MOST_GROUPS = 100


def waited_header(retries: int | None) -> int:
    """What `WAITED_HEADER` says on a message that waited. A retry of it has the header too, and did not wait."""
    return (retries or 0) + 1


def returned_key(request: Mapping[str, Any]) -> str | None:
    """The key that a message was parked under when it comes back; None for any other.

    A retry has the headers of the attempt before it, and is no copy of that.
    """
    retries, _, key = str(request.get(PARKED_HEADER) or "").partition(":")
    return key if key and retries == str(request.get("retries") or 0) else None


def pack_message(request: Mapping[str, Any]) -> bytes:
    """A message as a worker has it in its hands, encoded.

    Args:
        request: its headers, and what the worker has added to them.

    Raises:
        EncodeError: its arguments do not go back into the serializer they came in.
    """
    properties, delivery = request.get("properties") or {}, request.get("delivery_info") or {}
    kind = properties.get("content_type") or _JSON
    body = (request["args"], request["kwargs"], {name: request.get(name) for name in _EMBEDDED})
    content_type, encoding, payload = serialization.dumps(body, serializer=_serializer(kind))
    return codec.encode(
        {
            "poimen": 1,
            "headers": json.dumps({name: value for name, value in request.items() if name not in _ADDED}),
            "body": payload,
            "content_type": content_type,
            "content_encoding": encoding,
            "compression": request.get("compression"),
            "exchange": delivery.get("exchange") or "",
            "routing_key": delivery.get("routing_key") or "",
            "priority": delivery.get("priority"),
            "delivery_mode": properties.get("delivery_mode"),
            "correlation_id": request.get("correlation_id") or request["id"],
            "reply_to": request.get("reply_to") or "",
        },
        what=f"message {request['id']}",
    )


def _serializer(content_type: str) -> str:
    """The name of what reads this content type."""
    names: dict[str, str] = vars(serialization)["registry"].type_to_name
    return names.get(content_type, "json")


def is_kept_message(message: Any) -> bool:
    """Whether it is a message as it came, and not a signature."""
    return isinstance(message, dict) and message.get("poimen") == 1


def publish_message(producer: Producer, message: Mapping[str, Any], key: str, **how: Any) -> None:
    """Publish a kept message to where it came from; `key` is what it was parked under, `how` is for kombu."""
    headers = dict(json.loads(message["headers"]))
    headers[PARKED_HEADER] = f"{headers.get('retries') or 0}:{key}"
    options = {
        name: message[name]
        for name in ("priority", "delivery_mode", "compression", "correlation_id", "reply_to")
        if message.get(name) is not None
    }
    producer.publish(
        message["body"],
        exchange=message["exchange"],
        routing_key=message["routing_key"],
        content_type=message["content_type"],
        content_encoding=message["content_encoding"],
        headers=headers,
        **options,
        **how,
    )


def groups_of(request: Mapping[str, Any]) -> list[str]:
    """Groups and chords that wait, in the result backend, for a call or for what follows it."""
    found: dict[str, None] = {}
    left: list[Any] = [request.get(name) for name in _EMBEDDED]
    if isinstance(request.get("group"), str):
        found[request["group"]] = None
    while left and len(found) < _MOST_GROUPS:
        value = left.pop()
        if isinstance(value, Mapping):
            options = value.get("options")
            if isinstance(options, Mapping):
                group = options.get("group_id")
                if isinstance(group, str):
                    found[group] = None
                left += [options.get(name) for name in ("chord", "link", "link_error", "chain")]
            kwargs = value.get("kwargs")
            if isinstance(kwargs, Mapping) and "subtask_type" in value:
                left += [kwargs.get(name) for name in ("tasks", "header", "body")]
        elif isinstance(value, list | tuple):
            left += list(value)
    return list(found)
