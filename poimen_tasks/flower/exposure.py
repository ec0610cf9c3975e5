"""Who may reach Flower: checked before anything listens.

Its pages show arguments and results, and its API can stop workers. So without a login it is for this machine alone.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

from poimen_tasks._checks import expected
from poimen_tasks.errors import InvalidArgument

__all__ = ["check_exposure", "has_login", "is_loopback"]

_OPEN_API = "FLOWER_UNAUTHENTICATED_API"
_TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})


def check_exposure(options: Any, *, control: bool) -> None:
    """Refuse what would let strangers in.

    Args:
        options: Flower's, read from everywhere they may come from.
        control: whether its API may change anything.

    Raises:
        InvalidArgument: it would; the message says what to do instead.
    """
    _check_basic_auth(options.basic_auth)
    _check_oauth(options)
    if has_login(options):
        return
    if control:
        raise InvalidArgument(
            "--allow-control: expected a login beside it (--basic-auth USER:PASSWORD, or --auth with --auth_provider), "
            "got none: whoever reaches the port could stop workers and start tasks"
        )
    if options.unix_socket or is_loopback(options.address):
        return
    api = ""
    if os.environ.get(_OPEN_API, "").lower() in _TRUE:
        api = f"; {_OPEN_API} opens its API as well, and is for a loopback address only"
    where = f"{options.address!r}" if options.address else "'' (all interfaces)"
    raise InvalidArgument(
        f"--address {where}: expected a loopback address such as 127.0.0.1, or a login (--basic-auth USER:PASSWORD, or "
        f"--auth with --auth_provider): others could read every argument and result{api}"
    )


def has_login(options: Any) -> bool:
    """Whether people have to say who they are."""
    return bool(options.basic_auth or options.auth)


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address; an empty one, and `*`, mean all interfaces.

    Raises:
        InvalidArgument: it is neither an address nor a name that leads to one.
    """
    if not address:
        return False
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise expected("--address", "an address of this machine, or a name that leads to one", address) from None
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


def _check_basic_auth(pairs: Any) -> None:
    for number, pair in enumerate(pairs or (), start=1):
        user, _, password = str(pair).partition(":")
        if not user or not password:
            raise InvalidArgument(
                f"--basic-auth: expected USER:PASSWORD, neither of them empty nor with a comma, in part {number} of "
                f"{len(pairs)}"
            )


def _check_oauth(options: Any) -> None:
    if options.auth_provider and not options.auth:
        raise InvalidArgument("--auth_provider: expected --auth too, which says whose e-mail addresses may log in")
    if not options.auth:
        return
    if not options.auth_provider:
        raise InvalidArgument("--auth: expected --auth_provider too, the class of Flower's that logs people in")
    try:
        from flower.utils.authentication import validate_auth_option
    except ImportError:
        raise InvalidArgument(
            "--auth: this version of Flower lets addresses in that only begin like an allowed one; "
            'upgrade it (pip install -U "poimen-tasks[flower]"), or use --basic-auth'
        ) from None
    if not validate_auth_option(options.auth):
        raise expected("--auth", "an address, several with | between, or one * before the @", options.auth)
