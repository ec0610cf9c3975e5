"""A TCP proxy before a server, which cuts, delays and half-closes the connections through it, by a seed."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
from typing import Self
from urllib.parse import urlsplit

_HOST = "127.0.0.1"
_PIECE = 65_536
KINDS = ("delay", "cut", "tear", "half_close", "cut_reply")
"""What happens, in turn. Where a reply is cut, its command was carried out and nobody heard."""


class FlakyProxy:
    """Passes bytes on, and now and then does what bad networks do.

    Args:
        url: the URL of the server behind.
        seed: what happens is drawn from this.
        rate: the share of forwarded pieces at which something happens.
    """

    def __init__(self, url: str, *, seed: int, rate: float) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or _HOST, parts.port or 6379)
        self._path = parts.path
        self._draw = random.Random(seed)
        self._rate = rate
        self._listener = socket.create_server((_HOST, 0))
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self.quiet = threading.Event()
        """Set: nothing happens any more, bytes just pass."""
        self._lock = threading.Lock()
        self.done = dict.fromkeys(KINDS, 0)
        """How often each thing happened."""

    @property
    def url(self) -> str:
        """The URL by which clients come through here."""
        return f"redis://{_HOST}:{self._listener.getsockname()[1]}{self._path}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname(), timeout=1).close()  # wakes the accepting thread
        for thread in self._threads:
            thread.join(timeout=5)
        self._listener.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="flaky-proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            client, _ = self._listener.accept()
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with client:
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                return
            with server:
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with contextlib.suppress(OSError):
                    self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        """Until one end closes, or something happened that ends the connection."""
        other = {client: server, server: client}
        while not self._closing.is_set():
            ready, _, _ = select.select(list(other), [], [], 0.2)
            for source in ready:
                piece = source.recv(_PIECE)
                if not piece or not self._forward(piece, other[source], from_server=source is server):
                    return

    def _forward(self, piece: bytes, target: socket.socket, *, from_server: bool) -> bool:
        """Send a piece on, or not. Returns whether the connection goes on."""
        what = self._happens(from_server=from_server)
        if what in ("cut", "cut_reply"):
            return False
        if what == "tear":
            target.sendall(piece[: len(piece) // 2])
            return False
        if what == "delay":
            self._closing.wait(self._draw.uniform(0.05, 0.4))
        target.sendall(piece)
        if what == "half_close":
            target.shutdown(socket.SHUT_WR)
            self._closing.wait(0.2)  # the other direction stays open for a moment, and says nothing
        return what != "half_close"

    def _happens(self, *, from_server: bool) -> str | None:
        """What happens to this piece: the kinds take turns, so that each has its time in a short run."""
        with self._lock:
            if self.quiet.is_set() or self._draw.random() >= self._rate:
                return None
            what = KINDS[sum(self.done.values()) % len(KINDS)]
            if what == ("cut" if from_server else "cut_reply"):
                return None  # its turn comes with a piece of the other direction
            self.done[what] += 1
            return what
