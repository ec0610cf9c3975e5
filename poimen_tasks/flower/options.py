"""Flower's options with our defaults: safe ones, and such that its memory stays small.

They come from where Flower takes them: the command line, its configuration file, `FLOWER_*` variables. What stands in
several of them counts in this order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from poimen_tasks._checks import expected
from poimen_tasks.errors import InvalidArgument, SettingsError
from poimen_tasks.flower.exposure import check_exposure
from poimen_tasks.flower.passwords import SECRET_OPTIONS

__all__ = ["MISSING_EXTRA", "OPTIONS", "FlowerOptions", "read_options"]

#: Where ours differ from Flower's own: what it is reached by, what it remembers, and what it does unasked.
OPTIONS = MappingProxyType({
    "address": "127.0.0.1",
    "port": 5555,
    "max_tasks": 10_000,
    "max_workers": 1_000,
    "purge_offline_workers": 600,
    "enable_events": False,
    "persistent": False,
    "read_only": True,
})  # fmt: skip
MISSING_EXTRA = 'Flower is not installed: pip install "poimen-tasks[flower]"'

_CONF = "flowerconfig.py"
_PREFIX = re.compile(r"/?[A-Za-z0-9_~-]+(?:/[A-Za-z0-9_~-]+)*/?")
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]+\]")
_TRUE, _FALSE = frozenset({"y", "yes", "t", "true", "on", "1"}), frozenset({"n", "no", "f", "false", "off", "0"})
_LEVELS = ("debug", "info", "warning", "error", "none")
_COUNTS = (("max_tasks", 1), ("max_workers", 1), ("purge_offline_workers", 10))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowerOptions:
    """What Flower is started with.

    Attributes:
        flower: Flower's own options.
        control: whether its API may revoke, shut down and so on.
        hosts: names by which it may be asked beside those of the loopback address, where there is no login.
        public_metrics: whether `/metrics` needs no login.
    """

    flower: Any
    control: bool = False
    hosts: tuple[str, ...] = ()
    public_metrics: bool = False


def read_options(
    words: Sequence[str] = (),
    *,
    given: Mapping[str, Any] | None = None,
    control: bool = False,
    hosts: Sequence[str] = (),
    public_metrics: bool = False,
) -> FlowerOptions:
    """Read and check the options; Flower's are one object a process.

    Args:
        words: options of Flower, as `--name=value`.
        given: options that were read already, by Flower's names.
        control: as in `FlowerOptions`.
        hosts: as in `FlowerOptions`.
        public_metrics: as in `FlowerOptions`.

    Raises:
        InvalidArgument: an option is unknown, has a value that it does not take, or would let strangers in.
        SettingsError: Flower is not installed, or a variable or its configuration file is wrong.
    """
    try:
        from flower.options import default_options as options
    except ImportError:
        raise SettingsError(MISSING_EXTRA) from None
    _set(options, OPTIONS)
    _from_environment(options)
    _from_words(options, words)
    if _from_file(options):
        _from_words(options, words)
    _set(options, given or {})
    _check(options, control=control)
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise expected("--allow-host", "the name of a host, without a scheme or a port", host)
    check_exposure(options, control=control)
    _set(options, {"read_only": not control})
    return FlowerOptions(
        flower=options,
        control=control,
        hosts=tuple(host.lower() for host in hosts),
        public_metrics=public_metrics,
    )


def _set(options: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if name in options:  # an older Flower has no `read_only`
            setattr(options, name, value)


def _from_environment(options: Any) -> None:
    for variable, text in os.environ.items():
        name = variable.removeprefix("FLOWER_").lower()
        if not variable.startswith("FLOWER_") or name not in options:
            continue
        option = options._options[options._normalize_name(name)]  # noqa: SLF001 - there is no other way to its type
        try:
            value = [option.type(one) for one in text.split(",")] if option.multiple else _parsed(option.type, text)
        except (TypeError, ValueError):
            shown = "***" if name in SECRET_OPTIONS else repr(text[:60])
            raise SettingsError(f"{variable}: expected a value of type {option.type.__name__}, got {shown}") from None
        setattr(options, name, value)


def _parsed(kind: Any, text: str) -> Any:
    if kind is not bool:
        return kind(text)
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError
    return text.lower() in _TRUE


def _from_words(options: Any, words: Sequence[str]) -> None:
    from tornado.options import Error

    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name in {"", "help"} or name not in options:
            raise InvalidArgument(
                f"{word[:60]!r}: no such option; allowed are those of `poimen flower --help`, and Flower's own as "
                "--name=value"
            )
        try:
            options.parse_command_line(["flower", word], final=False)
        except (Error, TypeError, ValueError):
            kind = options._options[options._normalize_name(name)].type  # noqa: SLF001 - as above
            shown = "***" if name.replace("-", "_") in SECRET_OPTIONS else repr(value[:60])
            raise InvalidArgument(
                f"--{name}: expected a value of type {kind.__name__} behind a =, got {shown}"
            ) from None


def _from_file(options: Any) -> bool:
    """Read Flower's configuration, Python as it is; whether there was one."""
    path = Path(options.conf)
    if not path.exists() and path.name == _CONF:
        return False
    try:
        options.parse_config_file(str(path.absolute()), final=False)
    except Exception as error:  # the file is the user's: anything may happen in it
        raise SettingsError(f"{path}: Flower's configuration raised {type(error).__name__}: {error}") from error
    return True


def _check(options: Any, *, control: bool) -> None:
    if options.address == "*":
        options.address = ""
    if not 0 <= options.port <= 65_535:
        raise expected("--port", "a number from 0 to 65535", options.port)
    for name, least in _COUNTS:
        value = getattr(options, name)
        if value is None or value < least:
            raise expected(f"--{name}", f"a whole number from {least}", value)
    if str(options.logging).lower() not in _LEVELS:
        raise expected("--logging", f"one of {', '.join(_LEVELS)}", options.logging)
    if options.persistent:
        raise InvalidArgument(
            "--persistent: expected false, got true: Flower would keep its state as a pickle, and run what somebody "
            "else wrote into that file; our pages need none, they read the store"
        )
    if options.url_prefix and not _PREFIX.fullmatch(options.url_prefix):
        raise expected("--url-prefix", "words of A-Z a-z 0-9 _ ~ - with a / between", options.url_prefix)
    if bool(options.certfile) != bool(options.keyfile):
        raise InvalidArgument("--certfile, --keyfile: expected both, or neither, got one of them")
    _check_read_only(options, control=control)
    _check_broker_api(options.broker_api)


def _check_read_only(options: Any, *, control: bool) -> None:
    if "read_only" not in options:
        return
    if not options.read_only and not control:
        raise InvalidArgument("--read_only: expected true, got false; --allow-control is what opens Flower's controls")


def _check_broker_api(url: str | None) -> None:
    if url and not re.match(r"https?://[^/]", url):
        raise InvalidArgument("--broker_api: expected an http:// or https:// URL of RabbitMQ's management API")
