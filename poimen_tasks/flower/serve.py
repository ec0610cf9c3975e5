"""Starts Flower in this process: checked, bound, and only then serving."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from poimen_tasks.errors import InvalidArgument

if TYPE_CHECKING:
    import socket
    import ssl

    from poimen_tasks.flower.application import PoimenFlower
    from poimen_tasks.flower.options import FlowerOptions
    from poimen_tasks.flower.system import System

__all__ = ["Server", "prepare"]

_SOCKET_MODE = 0o660


@dataclass(frozen=True, slots=True)
class Server:
    """Flower that listens and does not answer yet.

    Attributes:
        address: where, as a browser takes it; the path of its socket where it has one.
    """

    address: str
    _application: PoimenFlower
    _sockets: Sequence[socket.socket]

    def run(self) -> None:
        """Answer until SIGTERM or Ctrl-C."""
        loop = self._application.io_loop

        def leave(_number: int, _frame: object) -> None:
            loop.add_callback_from_signal(self._application.stop)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leave)
        self._application.run()


def prepare(system: System, options: FlowerOptions) -> Server:
    """Make it, and bind its port.

    Args:
        system: the app whose batches it shows; its task modules are imported already.
        options: read by `read_options`.

    Raises:
        InvalidArgument: the port is taken, or the address is not one of this machine.
    """
    from flower.command import extract_settings
    from flower.urls import settings
    from tornado.httpserver import HTTPServer

    from poimen_tasks.flower.application import PoimenFlower

    _log(options.flower)
    extract_settings()
    secure = _secured(settings.get("ssl_options"))
    sockets = _bind(options.flower)
    application = PoimenFlower(system, options, **settings)
    server = HTTPServer(application, ssl_options=secure, xheaders=options.flower.xheaders)
    server.add_sockets(sockets)
    return Server(_address(options.flower, sockets, secure=secure is not None), application, sockets)


def _log(options: Any) -> None:
    """Flower's own log, without a line for each request."""
    from tornado.log import enable_pretty_logging

    enable_pretty_logging(options)
    logging.getLogger("tornado.access").addHandler(logging.NullHandler())
    logging.getLogger("tornado.access").propagate = False


def _secured(options: dict[str, Any] | None) -> ssl.SSLContext | None:
    """Read the certificate now: what is wrong with it would show only when somebody comes."""
    from tornado.netutil import ssl_options_to_context

    if options is None:
        return None
    try:
        return ssl_options_to_context(options, server_side=True)
    except (OSError, ValueError) as error:
        files = ", ".join(str(one) for one in options.values())
        raise InvalidArgument(f"--certfile, --keyfile: cannot be used ({files}): {error}") from None


def _bind(options: Any) -> list[socket.socket]:
    from tornado.netutil import bind_sockets, bind_unix_socket

    try:
        if options.unix_socket:
            return [bind_unix_socket(options.unix_socket, mode=_SOCKET_MODE)]
        return bind_sockets(options.port, address=options.address)
    except (OSError, ValueError) as error:
        where = options.unix_socket or f"{options.address or '*'}:{options.port}"
        raise InvalidArgument(f"cannot listen on {where}: {getattr(error, 'strerror', None) or error}") from None


def _address(options: Any, sockets: Sequence[socket.socket], *, secure: bool) -> str:
    if options.unix_socket:
        return str(options.unix_socket)
    host, port = sockets[0].getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    path = f"/{options.url_prefix.strip('/')}/" if options.url_prefix else "/"
    return f"{'https' if secure else 'http'}://{host}:{port}{path}"
