"""`docs/events.md` has every type of event that the code writes, and no other (promise A4)."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from poimen_tasks.audit.event import RESERVED
from poimen_tasks.audit.expand import RECORDED
from poimen_tasks.audit.header import Head
from poimen_tasks.audit.wording import _ACTIONS, STATUSES, describe
from tests.catalogue import documented
from tests.conftest import ROOT

LUA = ROOT / "poimen_tasks" / "store" / "lua"
TYPE = re.compile(rf"'((?:{'|'.join(sorted(RESERVED))})\.[a-z_]+)'")


def written_by_scripts():
    """The types that stand in calls of the include that appends an entry, or in what is given to it by a name."""
    found, calls = set(), 0
    for path in LUA.rglob("*.lua"):
        code = re.sub(r"--[^\n]*", "", path.read_text())
        calls += len(re.findall(r"\baudit(?:_batch)?\('", code))
        found |= set(TYPE.findall(code))
    assert calls > 30
    return found


def written_by_the_sealer():
    """The types of the sealer's own events, and of what cannot be read."""
    code = "".join((ROOT / "poimen_tasks" / "audit" / name).read_text() for name in ("own_events.py", "expand.py"))
    return set(re.findall(r'"((?:audit|store)\.[a-z_]+)"', code))


def test_every_type_is_documented_and_written():
    """Every type that a script or the sealer writes is on the page; every type on the page is one that they write."""
    assert set(documented()) == written_by_scripts() | written_by_the_sealer()
    assert RECORDED in documented()


def test_each_row_says_when_and_with_what():
    """A row has the type, when it is written, and its fields."""
    for kind, row in documented().items():
        assert row.when, kind
        assert row.fields, kind


def test_words_and_states_are_of_known_types():
    """What the log says about types, in words, is about types that exist; and each of a batch has its words."""
    assert set(STATUSES) <= set(documented())
    assert set(_ACTIONS) <= set(documented())


def test_a_gap_of_ticks_is_no_failure():
    """After each stop of the last worker there is a gap, and nothing is lost by it: `failure` is kept for what is."""
    header = {"gap": 30, "held": 10}
    event = describe(Head.read("keeper.gap", header, prefix="e-1-0-", at=datetime.now(UTC)), header, {})
    assert event["status"] == "warning"


def test_first_words_are_the_systems():
    """Nobody may record a type that begins like one on the page: it would be no evidence."""
    assert {kind.partition(".")[0] for kind in documented()} <= RESERVED
