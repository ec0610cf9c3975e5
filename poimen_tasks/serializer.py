"""The codec as a serializer of kombu, for messages and results of Celery."""

from __future__ import annotations

from typing import Any

from kombu import serialization

from poimen_tasks._refusals import MAX_DEPTH, SEQUENCES
from poimen_tasks.codec import decode, encode
from poimen_tasks.errors import SerializationError

__all__ = ["CONTENT_TYPE", "SERIALIZER", "register"]

SERIALIZER = "poimen"
CONTENT_TYPE = "application/x-poimen"


def register() -> None:
    """Make the codec known to kombu as serializer `poimen` (content type `application/x-poimen`); again is harmless."""
    encoder: Any = _encode_message  # kombu's types know text only
    decoder: Any = decode
    serialization.register(SERIALIZER, encoder, decoder, content_type=CONTENT_TYPE, content_encoding="binary")


def _encode_message(body: Any) -> bytes:
    """Encode a message of Celery, which may carry signatures: a subclass of dict that is meant to travel as one."""
    try:
        return encode(body, what="message")
    except SerializationError:
        return encode(_without_signatures(body, {}, 0), what="message")


def _without_signatures(value: Any, seen: dict[int, Any], depth: int) -> Any:
    """A copy in which signatures are plain dicts; it repeats itself where the value does, for `encode` to judge."""
    if id(value) in seen or depth > MAX_DEPTH:
        return seen.get(id(value), value)
    if type(value) is dict or _is_signature(value):
        copied = seen[id(value)] = {}
        copied.update((key, _without_signatures(part, seen, depth + 1)) for key, part in value.items())
        return copied
    if type(value) in SEQUENCES:
        listed = seen[id(value)] = []
        listed.extend(_without_signatures(part, seen, depth + 1) for part in value)
        return listed
    return value


def _is_signature(value: Any) -> bool:
    return isinstance(value, dict) and any(base.__module__ == "celery.canvas" for base in type(value).__mro__)
