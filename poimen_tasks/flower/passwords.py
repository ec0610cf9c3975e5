"""Keeps passwords off the list of processes, and out of what Flower shows of a worker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from poimen_tasks._urls import mask_url

__all__ = ["SECRET_OPTIONS", "hide_passwords", "mask_deep", "mask_text"]

#: Options of Flower whose values only its own process may know; `FLOWER_<NAME>` says the same.
SECRET_OPTIONS = ("basic_auth", "broker_api", "cookie_secret", "oauth2_key", "oauth2_secret")

_SEVERAL = "basic_auth"
_URL_PASSWORD = re.compile(r"""(://[^\s/:@'"]*:)[^\s/@'"]+@""")
_URL = re.compile(r"\A[\w.+-]+://\S+\Z")
_DEEP = 12


def hide_passwords(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A command line without the passwords in it, and the environment that says the same.

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
            found[waiting].append(word)
            waiting = ""
        elif option not in SECRET_OPTIONS:
            left.append(word)
        else:
            values = found.setdefault(option, [])
            if given:
                values.append(value)
            else:
                waiting = option
    if waiting and not found[waiting]:  # the value is missing: whoever reads the options says so
        left.append(f"--{waiting.replace('_', '-')}")
        del found[waiting]
    kept = {name: ",".join(values) if name == _SEVERAL else values[-1] for name, values in found.items()}
    return left, {f"FLOWER_{name.upper()}": value for name, value in kept.items()}


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
