"""What may be recorded, how it is written, and what is refused before anything is."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks import AuditEvent, InvalidArgument, InvalidId, PoimenError, SerializationError
from poimen_tasks.audit.event import RESERVED, event_of, filled, pack_event
from poimen_tasks.audit.expand import expand_entry, expand_lines
from tests.auditing import EPOCH, fields_of, strict

MIB = 1 << 20


def event(**changes):
    """An event that may be recorded, with these changes."""
    return AuditEvent(**{"event_type": "note", "actor": "ada", "action": "did it", **changes})


def packed(**changes):
    return strict(pack_event(event(**changes), most=MIB))


# -------------------------------------------------------------------------------------------- what is written
def test_fields():
    """An event has the fields of the log under their names (promise A1)."""
    full = event(
        event_id="e1", workflow="nightly", task="T1.1", timestamp=datetime(2025, 11, 29, 8, tzinfo=UTC),
        reasoning="because\nof that", input={"n": 1}, output=[None, True], status="failure", error="no",
        metadata={"k": 2},
    )  # fmt: skip
    assert full.to_dict() == {
        "event_id": "e1", "event_type": "note", "workflow_id": "nightly", "task_id": "T1.1", "actor": "ada",
        "timestamp": "2025-11-29T08:00:00.000000+00:00", "action": "did it", "reasoning": "because\nof that",
        "input": {"n": 1}, "output": [None, True], "status": "failure", "error": "no", "metadata": {"k": 2},
    }  # fmt: skip
    (line,) = expand_entry(EPOCH, "7-0", fields_of(full, "e1"))
    assert line == full.to_dict()
    assert AuditEvent.from_dict(line) == full


def test_a_time_is_filled_in():
    """An event without a time gets that of its entry, the store's (promise A2)."""
    (line,) = expand_entry(EPOCH, "1732893000123-5", fields_of(event(), "e1"))
    assert line["timestamp"] == "2024-11-29T15:10:00.123000+00:00"
    assert line["event_id"] == "e1"


def test_zones_become_utc():
    """A time of another zone is written as UTC, always with microseconds: texts sort as moments do."""
    moment = datetime(2025, 11, 29, 1, 30, tzinfo=timezone(timedelta(hours=2)))
    assert packed(timestamp=moment)["timestamp"] == "2025-11-28T23:30:00.000000+00:00"


def test_values_of_other_types():
    """What has a plain form is written in it."""
    found = packed(
        input=(Decimal("1.5"), UUID(int=1), Path("a/b"), date(2025, 11, 29), timedelta(seconds=2), 2**64 - 1),
        metadata={"when": datetime(2025, 11, 29, tzinfo=UTC)},
    )
    assert found["input"][0] == "1.5"
    assert found["input"][2:4] == ["a/b", "2025-11-29"]
    assert found["input"][5] == 2**64 - 1
    assert found["metadata"]["when"].startswith("2025-11-29T00:00:00")


def test_free_text_keeps_its_lines():
    """Line breaks, quotes and any character of Unicode stand in texts, escaped: a line stays one line (fault H10)."""
    text = 'one\ntwo\r\n\tthree "quoted" \\ \x00\x1b[31m \u2028 é 🐑'
    data = pack_event(event(action=text, reasoning=text, error=text, input=text, metadata={text: text}), most=MIB)
    assert not set(data) - set(range(32, 127))
    found = strict(data)
    assert [found[name] for name in ("action", "reasoning", "error", "input")] == [text] * 4
    assert found["metadata"] == {text: text}


def test_half_characters():
    """Half of a surrogate pair, which no strict parser takes, becomes six characters; a whole pair stays."""
    assert packed(reasoning="a\ud800b")["reasoning"] == "a\\ud800b"
    assert packed(metadata={"k\udfff": "🐑"})["metadata"] == {"k\\udfff": "🐑"}


# -------------------------------------------------------------------------------------------- what is refused
@pytest.mark.parametrize("value", [None, "note", {"event_type": "note"}, 7, object(), b"x", AuditEvent])
def test_no_event(value):
    """None, or anything that is no AuditEvent, is refused (promise A2)."""
    with pytest.raises(InvalidArgument, match="event: expected an AuditEvent"):
        pack_event(value, most=MIB)


@pytest.mark.parametrize(
    "value", ["", "a\nb", "a\rb", "a\x00b", "a\x1b[0m", "a b", "é", "\u2028", "x" * 129, "-a", None, 7, b"a", "a\udc80"]
)
@pytest.mark.parametrize("field", ["event_id", "event_type", "workflow", "actor", "status"])
def test_bad_names(field, value):
    """A newline, a control character or anything else that is no name is refused in every name, which is told."""
    if (field, value) in {("event_id", ""), ("workflow", None)}:  # not given: one is made, there is none
        assert packed(**{field: value})["workflow_id"] is None
        return
    with pytest.raises((InvalidId, InvalidArgument), match=f"^{field}: "):
        pack_event(event(**{field: value}), most=MIB)


@pytest.mark.parametrize("value", ["", "a\nb", "a\x00", "a\x1b", "x" * 257, 7, b"T1", "a\u2028b", "a\ud800"])
def test_bad_task_ids(value):
    """A task id has printable characters on one line; it is not a name, so spaces and slashes are allowed."""
    with pytest.raises((InvalidId, InvalidArgument), match=r"^task: "):
        pack_event(event(task=value), most=MIB)
    assert packed(task="pages/1 and é")["task_id"] == "pages/1 and é"


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_the_systems_own_types(word):
    """Nobody records an event that looks like one of the system's own."""
    with pytest.raises(InvalidArgument, match="system's own"):
        pack_event(event(event_type=f"{word}.finished"), most=MIB)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "input"),
        ({"a": [1, math.inf]}, r"input\.a\[1\]"),
        ([-math.inf], r"input\[0\]"),
        (b"x", "input"),
        ({"a": bytearray(b"x")}, r"input\.a"),
        ({1: "x"}, "input"),
        ({None: "x"}, "input"),
        ({"s": {1, 2}}, r"input\.s"),
        (object(), "input"),
        (2**64, "input"),
        (-(2**63) - 1, "input"),
        (1j, "input"),
        ([lambda: 1], r"input\[0\]"),
    ],
)
def test_values_without_a_place(value, path):
    """NaN, infinities, bytes, keys that are no text and strange objects are refused; the path to them is named."""
    with pytest.raises(SerializationError, match=f"^{path}"):
        pack_event(event(input=value), most=MIB)
    with pytest.raises(SerializationError, match=path.replace("input", "output")):
        pack_event(event(output=value), most=MIB)


def test_values_that_never_end():
    """A value that holds itself, or is nested too deep, is refused in words."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(SerializationError, match="nested deeper"):
        pack_event(event(metadata={"loop": loop}), most=MIB)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("action", ""), ("action", None), ("action", 7), ("action", "x" * 10_001), ("reasoning", None),
        ("reasoning", b"x"), ("error", 7), ("error", ValueError("x")), ("metadata", None), ("metadata", [1]),
        ("metadata", "x"),
        ("timestamp", "2025-11-29"), ("timestamp", 0), ("timestamp", datetime(2025, 11, 29)), # noqa: DTZ001
        ("timestamp", datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
    ],
)  # fmt: skip
def test_fields_of_another_type(field, value):
    """A field of another type is refused; the error names it, its value and what is allowed."""
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        pack_event(event(**{field: value}), most=MIB)


def test_content_is_not_recorded():
    """Nobody claims that a field is kept elsewhere: only the sealer moves fields out."""
    forged = event(content={"reasoning": {"sha256": "0" * 64, "bytes": 1}})
    with pytest.raises(InvalidArgument, match=r"^content: "):
        pack_event(forged, most=MIB)


@pytest.mark.parametrize("field", ["reasoning", "input", "output", "error"])
def test_too_large(field):
    """An event over the limit is refused before it is sent; the error names the largest part and the limit."""
    with pytest.raises(InvalidArgument, match=rf"POIMEN_AUDIT_MAX_BYTES.*largest part is {field}"):
        pack_event(event(**{field: "x" * (10 * MIB)}), most=8 * MIB)


def test_large_fields_are_moved_out():
    """A field over the inline limit is kept by digest; the line says its digest, length and type."""
    large = event(reasoning="é" * 2000, input={"rows": ["x"] * 1000}, metadata={"k": 1})
    (data,), blobs = expand_lines(EPOCH, "7-0", fields_of(large, "e1"), inline_bytes=1024)
    found = strict(data)
    assert (found["reasoning"], found["input"], found["metadata"]) == ("", None, {"k": 1})
    text, rows = (found["content"][name] for name in ("reasoning", "input"))
    assert (text["type"], text["bytes"], blobs[text["sha256"]].decode()) == ("text", 4000, "é" * 2000)
    assert (rows["type"], json.loads(blobs[rows["sha256"]])) == ("json", {"rows": ["x"] * 1000})
    assert len(data) < 1024


# -------------------------------------------------------------------------------------------- whatever comes
TEXTS = st.text(st.characters(codec=None), max_size=40)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=10) | st.decimals(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.integers(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(["note", "a.b", "x\ny", "", "-"]) | TEXTS


@settings(max_examples=100, deadline=None)
@given(
    changes=st.fixed_dictionaries(
        {},
        optional={
            "event_id": NAMES, "event_type": NAMES, "workflow": NAMES, "task": TEXTS, "actor": NAMES, "action": TEXTS,
            "reasoning": ANY, "input": ANY, "output": ANY, "status": NAMES, "error": ANY, "metadata": ANY,
            "timestamp": st.datetimes(timezones=st.just(UTC) | st.none()),
        },
    )
)  # fmt: skip
def test_what_is_written_always_parses(changes):
    """Whatever is given: it is refused with one of our errors, or its line is strict JSON (promise A2, fault H10)."""
    made = event(**changes)
    try:
        entry = fields_of(made, "e1")
    except PoimenError:
        return
    (data,), _ = expand_lines(EPOCH, "7-0", entry, inline_bytes=64)
    assert b"\n" not in data
    found = strict(data)
    assert (found["event_type"], found["workflow_id"], found["task_id"]) == (made.event_type, made.workflow, made.task)


@settings(max_examples=60, deadline=None)
@given(
    fields=st.dictionaries(st.sampled_from([b"t", b"h", b"d", b"x"]), st.binary(max_size=60), max_size=4),
    kind=st.sampled_from(
        [b"audit.recorded", b"item.finished", b"batch.opened", b"item.retried", b"cache.put", b"\xff\n"]
    ),
)
def test_entries_of_any_bytes(fields, kind):
    """An entry that nobody of ours wrote becomes a line with its bytes; nothing is skipped (promise A7)."""
    entry = {**fields, b"t": kind}
    lines, _ = expand_lines(EPOCH, "7-0", entry)
    again, _ = expand_lines(EPOCH, "7-0", entry)
    assert lines == again
    for line in lines:
        assert strict(line)["event_type"]


def test_an_unreadable_entry_is_told():
    """It is an event of its own with the entry's place and bytes (promise A7)."""
    (found,) = expand_entry(EPOCH, "7-0", {b"t": b"audit.recorded", b"h": b"\x81\xa1i\xd9\x02e1", b"d": b"{torn"})
    assert (found["event_type"], found["status"], found["metadata"]["stream_id"]) == (
        "audit.unreadable",
        "failure",
        "7-0",
    )
    assert "e3Rvcm4=" in found["metadata"]["fields"].values()


def test_an_event_of_its_values():
    """What is made the short way is what the class makes, field by field; a copy changes nothing of what it is of."""
    names = [one.name for one in dataclasses.fields(AuditEvent)]
    values = {name: object() for name in names}
    made = event_of(values[name] for name in names)
    assert {name: getattr(made, name) for name in names} == values
    made = event(metadata={"a": 1})
    again = filled(made, "e1", "1500-0")
    assert again == dataclasses.replace(made, event_id="e1", timestamp=datetime.fromtimestamp(1.5, UTC))
    assert (made.event_id, made.timestamp) == ("", None)
    assert filled(again, "e2", "9-0").timestamp == again.timestamp
