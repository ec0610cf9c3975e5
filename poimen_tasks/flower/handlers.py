"""Answers for the pages and their JSON twins, behind Flower's own login."""

from __future__ import annotations

import hashlib
import json
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tornado.web
from flower.views import BaseHandler

from poimen_tasks._json import jsonable
from poimen_tasks.errors import (
    AuditCorrupt,
    AuditUnavailable,
    BatchNotFound,
    InvalidArgument,
    InvalidId,
    LayoutMismatch,
    PoimenError,
    StoreRefused,
    StoreUnavailable,
)
from poimen_tasks.flower.blocks import notice
from poimen_tasks.flower.pages import PAGES, Asked, Page
from poimen_tasks.flower.passwords import mask_text

__all__ = ["PageHandler", "TwinHandler"]

_AWAY = (StoreUnavailable, StoreRefused, LayoutMismatch, AuditUnavailable, AuditCorrupt)
_STATUS: tuple[tuple[tuple[type[PoimenError], ...], int], ...] = (
    ((InvalidId, InvalidArgument), 400),
    ((BatchNotFound,), 404),
    (_AWAY, 503),
)
#: Nothing is loaded from elsewhere, no script or style stands in a page itself, and no other site frames it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@cache
def _version() -> str:
    """Of the script and the style sheet: a browser that knows older ones asks for the new."""
    files = sorted((Path(__file__).parent / "static").iterdir())
    return hashlib.sha256(b"".join(one.read_bytes() for one in files)).hexdigest()[:12]


class _Handler(BaseHandler):  # type: ignore[misc]  # Flower ships no types
    page: Page

    def initialize(self, page: Page) -> None:
        """Which page it is."""
        self.page = page

    def set_default_headers(self) -> None:
        """Never kept by anybody on the way."""
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Cache-Control", "no-store")

    def asked(self, batch_id: str) -> Asked:
        """The request in the page's terms; what the page does not know is left out."""
        prefix = self.application.options.url_prefix
        query = {name: self.get_query_argument(name, "") for name in self.page.parameters}
        return Asked(
            prefix=f"/{prefix.strip('/')}" if prefix else "",
            id=batch_id,
            query={name: value for name, value in query.items() if value},
        )

    async def data(self, asked: Asked) -> tuple[dict[str, Any], PoimenError | None]:
        """What the page read, or the error that tells why it could not; sets the status."""
        application: Any = self.application
        key = (self.page.name, asked.id, tuple(sorted(asked.query.items())))
        try:
            return await application.readings.get(key, partial(self.page.read, application.system, asked)), None
        except PoimenError as error:
            self.set_status(next((status for kinds, status in _STATUS if isinstance(error, kinds)), 500))
            return {"error": {"type": type(error).__name__, "message": mask_text(str(error), 1000)}}, error

    def blocks(self, data: dict[str, Any], error: PoimenError | None, asked: Asked) -> list[dict[str, Any]]:
        """What shows it."""
        if error is None:
            return self.page.show(data, asked)
        said = data["error"]["message"]
        if isinstance(error, _AWAY):
            said = f"The store does not answer, so there is nothing to show: {said}"
        return [notice(said, "danger")]


class PageHandler(_Handler):
    """A page, drawn here once; its script draws it anew."""

    @tornado.web.authenticated
    async def get(self, batch_id: str = "") -> None:
        """The page."""
        asked = self.asked(batch_id)
        data, error = await self.data(asked)
        self.render(
            "poimen/page.html",
            page=self.page,
            title=asked.id if self.page.name == "batch" and error is None else self.page.title,
            tabs=[(one.title, asked.link(one.path), one.name == self.page.name) for one in PAGES if one.tab],
            blocks=self.blocks(data, error, asked),
            twin=self._twin(asked),
            prefix=asked.prefix,
            version=_version(),
        )

    def _twin(self, asked: Asked) -> str:
        """Where the page's script asks for what is new."""
        path = self.page.twin or self.page.path
        return asked.link(f"/api{path.replace('([^/]+)', quote(asked.id, safe=''))}", **asked.query, view=1)


class TwinHandler(_Handler):
    """The same as JSON: `?view=1` has the blocks instead, for the page's script."""

    @tornado.web.authenticated
    async def get(self, batch_id: str = "") -> None:
        """What was read."""
        asked = self.asked(batch_id)
        data, error = await self.data(asked)
        if self.get_query_argument("view", ""):
            data = {"blocks": self.blocks(data, error, asked)}
        self.set_header("Content-Type", "application/json; charset=UTF-8")
        self.write(json.dumps(jsonable(data), allow_nan=False))
