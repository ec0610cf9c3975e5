"""Keeps passwords off the list of processes, and out of what Flower shows of a worker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from poimen_tasks._urls import mask_url

__all__ = ["SECRET_OPTIONS", "hide_passwords", "mask_deep", "mask_text", "revealed"]

#: Options of Flower whose values only its own process may know.
SECRET_OPTIONS = ("basic_auth", "broker_api", "cookie_secret", "oauth2_key", "oauth2_secret")

_SEVERAL = "basic_auth"
_URL_PASSWORD = re.compile(r"""(://[^\s/:@'"]*:)[^\s/@'"]+@""")
_URL = re.compile(r"\A[\w.+-]+://\S+\Z")
_DEEP = 12


def hide_passwords(words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """A command line without the passwords in it, and they, by option.

    Anybody on a machine sees the arguments of its processes; the environment is seen by the same user alone.

    Args:
        words: the arguments.
    """
    left, found = list[str](), dict[str, list[str]]()
    waiting = ""
    for word in words:
        name, given, value = word.partition("=")
        option = name[2:].replace("-", "_") if name.startswith("--") else ""
        if waiting:
            found.setdefault(waiting, []).append(word)
            waiting = ""
        elif option not in SECRET_OPTIONS:
            left.append(word)
        elif given:
            found.setdefault(option, []).append(value)
        else:
            waiting = option
    if waiting:  # its value is missing: whoever reads the options says so
        left.append(f"--{waiting.replace('_', '-')}")
    return left, found


def revealed(found: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The same as Flower's options have them: logins are a list, also of several in one; of the others the last counts.

    Args:
        found: what `hide_passwords` found.
    """
    logins = [one for value in found.get(_SEVERAL, ()) for one in value.split(",")]
    others = {name: values[-1] for name, values in found.items() if name != _SEVERAL}
    return {**others, **({_SEVERAL: logins} if logins else {})}


def mask_text(text: str, most: int = 300) -> str:
    """Words of others, cut to a length and without the passwords of URLs in them."""
    clean = _URL_PASSWORD.sub(r"\1***@", text) if "://" in text else text
    return clean if len(clean) <= most else f"{clean[: most - 3]}..."


def mask_deep(value: Any, depth: int = _DEEP) -> Any:
    """A worker's answer with the passwords of URLs masked wherever they stand: Celery hides only those it knows of."""
    if isinstance(value, str):
        if _URL.match(value):
            return mask_url(value)
        return _URL_PASSWORD.sub(r"\1***@", value) if "://" in value else value
    if depth and isinstance(value, Mapping):
        return {name: mask_deep(one, depth - 1) for name, one in value.items()}
    if depth and isinstance(value, (list, tuple)):
        return [mask_deep(one, depth - 1) for one in value]
    return value
