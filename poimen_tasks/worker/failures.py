"""What went wrong in an item, as data: an exception's name, text and traceback; and calls that do not fit."""

from __future__ import annotations

import inspect
import traceback as tracebacks
from typing import Any

from celery.utils.serialization import UnpickleableExceptionWrapper

from poimen_tasks.errors import SerializationError, SignatureMismatch

__all__ = ["call_mismatch", "described", "error_text", "error_type"]

_MOST_MESSAGE, _MOST_TRACEBACK = 16 * 1024, 64 * 1024


def error_type(error: BaseException) -> str:
    """The name of an exception's class: bare for builtins and our own, with its module otherwise."""
    if isinstance(error, UnpickleableExceptionWrapper):  # all that is left of it, when it was raised elsewhere
        return str(error.exc_cls_name)
    if isinstance(error, SerializationError):
        return "PayloadTooLarge" if "TooLarge" in type(error).__name__ else "SerializationError"
    kind = type(error)
    bare = kind.__module__ in ("builtins", "celery.exceptions", "billiard.exceptions", "poimen_tasks.errors")
    return kind.__qualname__ if bare else f"{kind.__module__}.{kind.__qualname__}"


def error_text(error: BaseException) -> str:
    """An exception's message, cut to a length that may be recorded; whatever its class does."""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"<no text: {type(broken).__name__}>"
    return text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE]}... ({len(text):,} characters)"


def described(error: BaseException, traceback: str | None = None) -> tuple[str, str, str]:
    """An exception as an outcome keeps it: name, text, traceback.

    Args:
        error: what was raised.
        traceback: its traceback as text; None: made here.
    """
    text = "".join(tracebacks.format_exception(error)) if traceback is None else traceback
    return error_type(error), error_text(error), _cut(text)


def _cut(text: str) -> str:
    if len(text) <= _MOST_TRACEBACK:
        return text
    half = _MOST_TRACEBACK // 2
    return f"{text[:half]}\n... ({len(text):,} characters) ...\n{text[-half:]}"


def _parameters(task: Any, args: Any, kwargs: Any) -> str | None:
    """Why a call does not fit the task's function; None when it does, or when nobody can tell."""
    try:
        signature = inspect.signature(task.run)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def _began(task: Any, error: BaseException) -> bool:
    """True when the body itself had begun: then the error is its own, whatever a `__call__` made of the arguments."""
    body = inspect.unwrap(task.run)
    code, frame = getattr(getattr(body, "__func__", body), "__code__", None), error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code is code:
            return True
        frame = frame.tb_next
    return False


def call_mismatch(task: Any, args: Any, kwargs: Any, error: BaseException | None) -> SignatureMismatch | None:
    """The error of a call that this worker's function does not take; None for every other error.

    Asked when an item has failed, so it costs nothing before.
    """
    if type(error) is not TypeError or _began(task, error):
        return None
    why = _parameters(task, args or (), kwargs or {})
    if why is None:
        return None
    return SignatureMismatch(f"the call does not fit {task.name} of this worker: {why}; deploy what the producer has")
