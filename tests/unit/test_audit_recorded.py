"""The short way of a recorded event to its line: the same bytes as the long way, or none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poimen_tasks import codec
from poimen_tasks.audit.event import AuditEvent, pack_event
from poimen_tasks.audit.expand import SEALER_TYPES, expand_lines
from poimen_tasks.audit.lines import PRINTABLE, read_event
from poimen_tasks.audit.recorded import recorded_lines
from poimen_tasks.store.audit_scripts import RawEntry
from poimen_tasks.store.outcome_blob import encode_outcomes

EPOCH, ID = "ab" * 20, "1795994842142-7"
WORDS = st.text(max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | WORDS
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_:-]{0,20}\Z")


def fields(payload: bytes, ident: bytes = b"event-1") -> dict[bytes, bytes]:
    """An entry as the client writes it."""
    return {b"t": b"audit.recorded", b"h": b"\x81\xa1i\xd9" + bytes((len(ident),)) + ident, b"d": payload}


def payload(**changes: Any) -> bytes:
    """The JSON of an event, with changes that no client of ours would write."""
    values: dict[str, Any] = {
        "event_type": "step", "workflow_id": None, "task_id": None, "actor": "ada", "timestamp": None, "action": "did",
        "reasoning": "", "input": None, "output": None, "status": "success", "error": None, "metadata": {},
    }  # fmt: skip
    return json.dumps({**values, **changes}, separators=(",", ":")).encode()


def the_short_way(entry: dict[bytes, bytes], most: int) -> bytes | None:
    """What the code for recorded events makes of it."""
    (line,) = recorded_lines([RawEntry(ID, [part for field in entry.items() for part in field])], most)
    return line


def the_long_way(entry: dict[bytes, bytes]) -> bytes:
    """What the general code makes of it."""
    (line,) = expand_lines(EPOCH, ID, entry).events
    return line


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine
@given(
    st.builds(
        AuditEvent,
        event_type=NAMES, workflow=st.none() | NAMES, task=st.none() | NAMES, actor=NAMES,
        action=st.text(min_size=1, max_size=40), reasoning=WORDS, input=VALUES, output=VALUES, status=NAMES,
        error=st.none() | WORDS, metadata=st.dictionaries(WORDS, VALUES, max_size=4),
        timestamp=st.none() | st.datetimes(timezones=st.just(UTC)),
    )
)  # fmt: skip
def test_both_ways_lead_to_the_same_bytes(event: AuditEvent) -> None:
    """Whatever a client of ours records, the short way writes what the long one does, or leaves it to that."""
    entry = fields(pack_event(event, most=1 << 20))
    line = the_short_way(entry, 1 << 20)
    assert line in {None, the_long_way(entry)}


def test_plain_events_take_the_short_way() -> None:
    """The usual event does, with and without a time of its own, with lines and other alphabets in its text."""
    when = datetime(2026, 11, 29, 12, 30, tzinfo=UTC)
    for event in (
        AuditEvent(event_type="step", actor="ada", action="did", reasoning="one\ntwo", metadata={"n": [1, {"a": 2.5}]}),
        AuditEvent(event_type="step", actor="ada", action="did", input='a "text"\\', output={"n": 1}),
        AuditEvent(event_type="step", actor="ada", action="größer", timestamp=when, workflow="w", task="t"),
    ):
        entry = fields(pack_event(event, most=1 << 20))
        assert the_short_way(entry, 4096) == the_long_way(entry)


@pytest.mark.parametrize(
    "body",
    [
        payload(action="\ud800"),
        payload(metadata={"a": 1}).replace(b'"a":1', b'"a":1,"a":2'),
        payload(metadata={"a": 1}).replace(b'"a":1', b'"a":1,"a" :2'),
        payload().replace(b'"action":', b'"action":1,"action":'),
        payload(action=float("nan")),
        payload(action=1).replace(b":1,", b":1e999,"),
        payload() + b" ",
        payload().replace(b'"did"', b'"d\x01d"'),
        payload().replace(b'"did"', b'"d\xffd"'),
        payload().replace(b'"did"', b'"did"\n'),
        payload(extra=1),
        payload(metadata={"a": "\ud800"}),
        payload(metadata={"a": float("inf")}),
        payload(metadata={"a": 1}).replace(b'"a":1', b'"a":1}{'),
        payload(reasoning="x", input={"a": "x"}).replace(b'"a":"x"', b'"a":"x","a":"y"'),
        payload(input="\udfff"),
        payload(event_type="item.finished"),
        payload(event_type="audit.gap"),
        payload()[:-1],
        b"",
        b"[]",
        b'{"event_type":' + b"[" * 5_000,
    ],
    ids=range(22),
)
def test_anything_else_does_not(body: bytes) -> None:
    """What no client writes takes the long way, which makes one line of strict, printable JSON of it."""
    entry = fields(body)
    assert the_short_way(entry, 1 << 20) is None
    line = the_long_way(entry)
    assert not line.translate(None, PRINTABLE)
    read_event(line)


@pytest.mark.parametrize(
    "header", [b"", b"\x81", b"\x81\xa1i\xd9\x05abc", b"\x81\xa1i\xd9\x03a\nb", b"\x81\xa1i\xd9\x00"]
)
def test_an_id_that_is_none(header: bytes) -> None:
    """An entry whose event has no proper id takes the long way."""
    assert the_short_way({**fields(payload()), b"h": header}, 4096) is None


def test_a_large_event_is_left_to_who_moves_fields_out() -> None:
    """Over the limit of a line the long way keeps fields by digest."""
    assert the_short_way(fields(payload(reasoning="x" * 5_000)), 4096) is None


@pytest.mark.parametrize("kind", sorted(SEALER_TYPES))
def test_what_the_sealer_says_cannot_be_forged(kind: str) -> None:
    """Neither a recorded event nor an entry written by hand becomes an event of the sealer's own."""
    for entry in (fields(payload(event_type=kind)), {b"t": kind.encode(), b"h": b"\x80", b"d": b""}):
        line = json.loads(the_long_way(entry))
        assert line["event_type"] == "audit.unreadable"
        assert kind in line["error"]


def test_an_id_beyond_all_calendars() -> None:
    """An entry that somebody gave an id of no time is sealed as any other: as of the last day."""
    entry, late = fields(payload()), f"{(1 << 64) - 1}-0"
    (line,) = expand_lines(EPOCH, late, entry).events
    assert recorded_lines([RawEntry(late, [part for field in entry.items() for part in field])], 4096) == [line]
    assert b'"timestamp":"9999-12-31T23:59:59.999000+00:00"' in line
    (unread,) = expand_lines(EPOCH, late, {b"t": b"\xff"}).events
    assert b'"event_type":"audit.unreadable"' in unread


def test_nothing_of_a_payload_gets_onto_a_line_as_it_is() -> None:
    """Attempts that are text could be anything else in JSON, another line too: the entry is unreadable."""
    header = msgpack.packb({"b": "b", "w": "w", "s": "d", "a": "a", "ok": 1})
    for tries in ("1\n{}", '1,"x":1', 1.5):
        blob = encode_outcomes(
            positions=range(1), started=[1.0], durations=[0.1], worker="w", enqueued=0.5, attempts=[tries]
        )  # fmt: skip
        (line,) = expand_lines(EPOCH, ID, {b"t": b"item.finished", b"h": header, b"d": blob}).events
        assert b'"event_type":"audit.unreadable"' in line


@pytest.mark.parametrize(
    "body",
    [
        payload(timestamp="nonsense"), payload(timestamp="2025-01-01T00:00:00"), payload(timestamp=5),
        payload(actor=[1]),
        payload(task_id=5), payload(workflow_id={}), payload(action=5), payload(reasoning=["a"]), payload(status=None),
        payload(error=5), payload(metadata=[1]), payload(content={"reasoning": 5}), payload(event_id="another"),
        b"[]",
        payload().replace(b'"input":null', b'"input":' + b"[" * 300 + b"]" * 300),
        payload().replace(b'"metadata":{}', b'"metadata":' + b'{"a":' * 300 + b"1" + b"}" * 300),
    ],
)  # fmt: skip
def test_what_readers_would_fail_at_is_unreadable(body: bytes) -> None:
    """A line that the index or a query cannot take would stand in the way of every question, for ever."""
    entry = fields(body)
    assert the_short_way(entry, 1 << 20) is None
    event = json.loads(the_long_way(entry))
    assert (event["event_type"], event["metadata"]["stream_id"]) == ("audit.unreadable", ID)


@pytest.mark.parametrize(
    "header",
    [
        {"r": [0, 2**32]}, {"r": [0, 2**64 - 1]}, {"r": [0, 1.5]}, {"r": [0]}, {"r": ["a", "b"]}, {"w": 5},
        {"a": {"b": 1}}, {"b": [1]}, {"r": [0, 1], "t": [5]}, {"x": json.loads("[" * 300 + "]" * 300)},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["item.cancelled", "lane.lost"])
def test_headers_that_nobody_of_ours_writes(kind: str, header: dict[str, Any]) -> None:
    """A few bytes that stand for billions of items, names that are no texts: a line says so, and the sealer goes on."""
    if kind == "lane.lost" and "t" in header:
        header = {**header, "w": 5}
    (line,) = expand_lines(EPOCH, ID, {b"t": kind.encode(), b"h": msgpack.packb(header)}).events
    assert json.loads(line)["event_type"] == "audit.unreadable"


def test_an_item_that_ended_in_the_second_before_1970() -> None:
    """Every line has a time that can be read."""
    row = [[0, 1], -1.0, [0], [5], None, None, None, None, "w", 0.0, None, None]
    entry = {b"t": b"item.finished", b"h": msgpack.packb({"b": "b", "position": 7}), b"d": codec.encode(row)}
    (line,) = expand_lines(EPOCH, ID, entry).events
    assert json.loads(line)["timestamp"] == "1969-12-31T23:59:59.000005+00:00"
    assert line.count(b'"position":') == 1
