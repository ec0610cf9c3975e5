"""From the first line to the last: what is scanned by parts and at once finds the line that a look at each finds."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks.audit import walk
from poimen_tasks.audit.lines import problem_of
from poimen_tasks.audit.segments import Segment
from poimen_tasks.audit.walk import Walk

KINDS = ["x", "audit.note", "audit.epoch", "store.rollback"]


def line(seq, ident, n, last, *, kind="x", epoch="e1"):
    """A line with these, and a right CRC."""
    event = json.dumps({"event_type": kind})
    end = '"last":true,' if last else ""
    crc = zlib.crc32(event.encode())
    return f'{{"seq":{seq},"epoch":"{epoch}","id":"{ident}-0","n":{n},{end}"crc":"{crc:08x}","event":{event}}}'.encode()


def found_by_walking(path, lines, size):
    """The number of the first bad line; -1: there is none."""
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    one = Walk([Segment(0, path, path.stat().st_size)] if lines else [], size, None)
    one.run(lambda _done, _total: None)
    return one.problem.seq if one.problem else -1


def found_one_by_one(lines, size):
    """The same, with a look at each."""
    before = None
    for seq, one in enumerate(lines):
        head, _ = problem_of(one, seq, before, strict=True)
        if head is None or (seq == size - 1 and not head.place.last):
            return seq
        before = head.place
    return -1


@st.composite
def rows(draw):
    """Entries of some lines each, a few of them changed."""
    made = [
        [ident, n, n == count - 1, draw(st.sampled_from(KINDS)), "e1"]
        for ident, count in enumerate(draw(st.lists(st.integers(1, 4), min_size=1, max_size=20)), 1)
        for n in range(count)
    ]
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(made) - 1))
        field, value = draw(
            st.sampled_from([(0, 1), (0, 9), (1, 0), (1, 2), (2, True), (2, False), (3, "audit.epoch"), (4, "e2")])
        )
        made[at][field] = value
    return made


@given(rows(), st.data(), st.sampled_from([100, 300, 5000]))
@settings(max_examples=300, deadline=None)
def test_the_first_bad_line(tmp_path_factory, made, data, part):
    """Wherever parts end, and whatever stands behind it, it is the first bad line that is named (promise A3)."""
    lines = [line(seq, *row[:3], kind=row[3], epoch=row[4]) for seq, row in enumerate(made)]
    if data.draw(st.booleans()):
        lines[data.draw(st.integers(0, len(lines) - 1))] = data.draw(
            st.sampled_from([b"", b"{}", line(77, 1, 0, True)])
        )
    size = data.draw(st.integers(0, len(lines)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walk, "_PART", part)
        assert found_by_walking(tmp_path_factory.getbasetemp() / "lines", lines, size) == found_one_by_one(lines, size)


def test_a_checkpoint_within_an_entry_before_a_damaged_line(tmp_path):
    """A checkpoint that ends within an entry is told even where a line behind it is damaged."""
    lines = [line(0, 1, 0, True), line(1, 2, 0, False), line(2, 2, 1, True), b"{}"]
    assert found_by_walking(tmp_path / "lines", lines, 2) == 1
    assert found_by_walking(tmp_path / "lines", lines, 3) == 3
