"""What no request gets past: read-only means that nothing but reading is answered, whatever routes Flower has."""

from __future__ import annotations

import ipaddress
import re

import tornado.httputil
import tornado.web

from poimen_tasks.flower.exposure import has_login
from poimen_tasks.flower.options import FlowerOptions

__all__ = ["Guard", "OurHeaders", "Refused"]

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Posts that only read: the list of tasks may be asked for with more filters than an address holds.
_READING_POSTS = ("/tasks/datatable",)
_PORT = re.compile(r":\d{1,5}\Z")


class Guard:
    """Says why a request is refused.

    Args:
        options: what Flower was started with.
    """

    def __init__(self, options: FlowerOptions) -> None:
        self._control = options.control
        self._prefix = f"/{options.flower.url_prefix.strip('/')}" if options.flower.url_prefix else ""
        # Another site could lead its name to this machine's loopback address, and read through a visitor's browser.
        self._any_host = has_login(options.flower) or bool(options.flower.unix_socket)
        self._hosts = frozenset({"localhost", options.flower.address.lower(), *options.hosts})

    def why_not(self, method: str, path: str, host: str) -> str:
        """Why; empty for a request that is welcome."""
        if not self._any_host and not self._is_ours(host):
            return "Without a login Flower answers to this machine's own names; --allow-host NAME adds one."
        if self._control or method in _READS or path.removeprefix(self._prefix) in _READING_POSTS:
            return ""
        return "Flower is read-only here; --allow-control opens its controls."

    def _is_ours(self, host: str) -> bool:
        name = _PORT.sub("", host.lower())
        if name in self._hosts:
            return True
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False


class Refused(tornado.web.RequestHandler):
    """403 and why, to any method."""

    def initialize(self, why: str) -> None:
        """Keep the words."""
        self._why = why

    def check_xsrf_cookie(self) -> None:
        """Nothing is done, so nothing is forged."""

    def prepare(self) -> None:
        """Answer at once."""
        self.set_status(403)
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.finish(self._why)


class OurHeaders(tornado.web.OutputTransform):
    """No page of another site frames an answer of Flower, and none reads it: an older Flower lets all of them."""

    def transform_first_chunk(
        self,
        status_code: int,
        headers: tornado.httputil.HTTPHeaders,
        chunk: bytes,
        finishing: bool,  # noqa: ARG002 - Tornado's signature
    ) -> tuple[int, tornado.httputil.HTTPHeaders, bytes]:
        """Headers alone."""
        for name in [name for name in headers if name.lower().startswith("access-control-")]:
            del headers[name]
        headers["X-Content-Type-Options"] = "nosniff"
        headers["X-Frame-Options"] = "DENY"
        headers["Referrer-Policy"] = "same-origin"
        return status_code, headers, chunk
