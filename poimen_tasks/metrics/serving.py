"""A small HTTP server for scrapes: `/metrics`, and `/-/healthy` for whoever watches this process."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import socketserver
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple, Self

from poimen_tasks._checks import expected
from poimen_tasks.metrics.collector import PoimenCollector
from poimen_tasks.metrics.exposition import scrape

__all__ = ["Address", "MetricsServer"]

#: Connections at a time; one more is closed at once, so that nobody can fill the process with them.
MOST_CONNECTIONS = 16
#: Seconds that a client may take to say what it wants, or to take the answer.
PATIENCE = 10.0
_TEXT = "text/plain; charset=utf-8"


class Address(NamedTuple):
    """Where to listen; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `HOST:PORT`, an IPv6 host in brackets.

        Raises:
            InvalidArgument: it is none.
        """
        host, colon, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        bracketed = host != bare
        good = colon and bare and port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535
        if not good or bracketed != (":" in bare) or not _is_host(bare):
            raise expected("address", "HOST:PORT, as 127.0.0.1:9808 or [::1]:9808, with a port from 0 to 65535", text)
        return cls(bare, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it. Of names that is known of `localhost` alone."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_host(text: str) -> bool:
    if ":" not in text:
        known = all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in text)
        return known and all(0 < len(label) < 64 for label in text.removesuffix(".").split("."))
    with contextlib.suppress(ValueError):
        return bool(ipaddress.IPv6Address(text))
    return False


class MetricsServer:
    """Serves scrapes in threads of its own while it is entered.

    Args:
        collector: what is told.
        address: where to listen.

    Raises:
        OSError: nothing can listen there.
    """

    def __init__(self, collector: PoimenCollector, address: Address) -> None:
        self._server = _Server(address, collector)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True)

    @property
    def address(self) -> Address:
        """Where it listens."""
        host, port, *_ = self._server.server_address
        return Address(str(host), int(port))

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Serve until this is left."""
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: Address, collector: PoimenCollector) -> None:
        self.collector = collector
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        family, *_, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        super().__init__((str(place[0]), int(place[1])), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or said nothing for too long, is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(*scrape(self.server.collector).text(self.headers.get("Accept", "")))
        elif path == "/-/healthy":
            self._answer(b"Healthy.\n", _TEXT)
        elif path == "/":
            self._answer(b"Metrics are at /metrics.\n", _TEXT)
        else:
            self._answer(b"Not found: there are /metrics and /-/healthy.\n", _TEXT, HTTPStatus.NOT_FOUND)

    do_HEAD = do_GET  # noqa: N815 - the same

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """What is no request that this understands, in a line of text instead of the base class's page."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # what it says of a method without a `do_…`
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "Metrics are read: GET and HEAD are what is answered."
        self.close_connection = True
        self._answer(f"{message or HTTPStatus(code).phrase}\n".encode(), _TEXT, HTTPStatus(code))

    def _answer(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "poimen"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """A line a scrape would fill logs."""
