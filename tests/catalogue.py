"""Reads `docs/events.md`: the types of events, when each is written, and its fields."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.conftest import ROOT

_BATCH = {"b", "w", "s", "a"}
#: Sections all of whose entries are about a batch, and about items of one.
_OF_BATCHES, _OF_ITEMS = {"Batches", "Items"}, {"i", "t", "cached", "coalesced"}
_ROW = re.compile(r"\| `([a-z]+\.[a-z_]+)` \| (.*?) \| (.*) \|")


class Row(NamedTuple):
    """A type: when it is written, the names of its fields, and the section that it stands in."""

    when: str
    fields: set[str]
    section: str


def documented() -> dict[str, Row]:
    """Every type on the page."""
    found: dict[str, Row] = {}
    section, last = "", set[str]()
    for line in (ROOT / "docs" / "events.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        match = _ROW.fullmatch(line)
        if match is None:
            continue
        kind, when, text = match.groups()
        last = last if text == "the same" else set(re.findall(r"`([a-z_]+)`", text))
        more = _BATCH if section in _OF_BATCHES or "batch fields" in text else set()
        assert kind not in found, f"{kind} stands twice on the page"
        found[kind] = Row(when, last | more | (_OF_ITEMS if section == "Items" or "`r`" in text else set()), section)
    return found
