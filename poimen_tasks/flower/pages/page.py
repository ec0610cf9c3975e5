"""What a page is: a path, a read of the store, and the blocks that show what was read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from poimen_tasks._checks import expected
from poimen_tasks.flower.blocks import Block
from poimen_tasks.flower.system import System
from poimen_tasks.ids import check_name

__all__ = ["Asked", "Page"]

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks of a page.

    Attributes:
        prefix: what Flower's addresses begin with.
        id: of the batch, where the page is about one.
        query: the parameters that the page knows, those of them that were given.
    """

    prefix: str = ""
    id: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    def link(self, path: str, **query: object) -> str:
        """An address of ours."""
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.prefix}/poimen{path}{'?' + urlencode(given) if given else ''}"

    def batch(self, batch_id: str) -> str:
        """The page of a batch."""
        return self.link(f"/batches/{quote(batch_id, safe=':')}")

    def number(self, name: str, default: int, *, least: int, most: int) -> int:
        """A parameter that is a whole number.

        Raises:
            InvalidArgument: it is none, or out of its range.
        """
        text = self.query.get(name, "")
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            raise expected(name, f"a whole number from {least} to {most}", text)
        return int(text)

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """A parameter that is one of a few words; the first is the default.

        Raises:
            InvalidArgument: it is another.
        """
        text = self.query.get(name) or allowed[0]
        if text not in allowed:
            raise expected(name, f"one of {', '.join(allowed)}", text[:_LONGEST])
        return text

    def name(self, name: str) -> str | None:
        """A parameter that is an id.

        Raises:
            InvalidId: it breaks the rule.
        """
        text = self.query.get(name)
        return check_name(text, name) if text else None


@dataclass(frozen=True, slots=True)
class Page:
    """One page and its JSON twin.

    Attributes:
        name: what its route and its tab are known by.
        path: behind `/poimen`, and for the twin behind `/poimen/api`; a pattern.
        twin: the path of the twin where it differs.
        title: its heading.
        parameters: what it may be asked.
        read: reads the store; called in a thread. Plain values, ready for JSON.
        show: the blocks for what was read.
        tab: whether it has a tab.
    """

    name: str
    path: str
    title: str
    read: Callable[[System, Asked], dict[str, Any]]
    show: Callable[[dict[str, Any], Asked], list[Block]]
    parameters: tuple[str, ...] = ()
    twin: str = ""
    tab: bool = True
