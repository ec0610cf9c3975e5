"""Many lines at once: whatever is done to them at once gives what one by one gives."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poimen_tasks.audit.blocks import encode, take_apart
from poimen_tasks.audit.lines import Lines, problem_of, read_event
from tests.conftest import ROOT
from tests.unit.audit_logs import entries, entry, event

HALF = "its event holds half of a character (a lone surrogate)"
BYTES = rb' "\{}[]:,0123456789.eE+-untrfalsbdDx/A~' + b"\t\n\r\x00\x7f\xc3\xa9"
EVENTS = [
    b"{}",
    b'{"a":1}',
    b'{"e":[],"f":[[]],"g":[{}],"h":{"event":{"event":{}}}}',
    rb'{"a":"x","b":[1,2.5,-0.1e+5,null,true,false,{"c":"\u00e9\n\\\"\/"}],"d":{"e":"\ud83d\ude00"}}',
    event(7, metadata={"text": "héllo €\x00\n", "numbers": [0, -0.5, 1e300]}),
]


def line(text, seq=0, *, ident=b"1764417600000-0", crc=None):
    """A line whose event has these bytes."""
    crc = zlib.crc32(text) if crc is None else crc
    return b'{"seq":%d,"epoch":"e1","id":"%b","n":0,"last":true,"crc":"%08x","event":%b}' % (seq, ident, crc, text)


def block_of(*events):
    """Lines with these events, one behind the other."""
    return b"".join(line(text, at, ident=b"%d-0" % (at + 1)) + b"\n" for at, text in enumerate(events))


def sound(data):
    """Whether every line is one, looked at one by one, in our own words."""
    *lines, rest = data.split(b"\n")
    return bool(lines) and not rest and all(problem_of(one, -1, None, ordered=False, strict=True)[0] for one in lines)


def test_what_is_written_is_read():
    """Lines that are written at once are, taken apart, what they were made of (promise A3)."""
    lines = Lines.of([*entries(0, 40), *entry(40, lines=3), *entry(41)])
    block = take_apart(encode(900, lines))
    assert block.seqs == list(range(900, 944))
    assert block.events == lines.events
    assert list(block.places.numbers) == lines.numbers
    assert list(block.places.lasts) == lines.lasts
    assert [block.places.place(at).id for at in range(44)] == lines.ids


@given(st.sampled_from(EVENTS), st.data())
@settings(max_examples=500, deadline=None)
def test_a_damaged_line_is_found_as_one_by_one(text, data):
    """Bytes that were put in, taken out or changed anywhere are refused just where a look at each line refuses them."""
    block = bytearray(block_of(b'{"z":0}', text, b'{"y":0}'))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(block) - 1))
        how, byte = data.draw(st.sampled_from("cid")), data.draw(st.sampled_from(BYTES))
        block[at : at + (how != "i")] = b"" if how == "d" else bytes([byte])
    made = bytes(block)
    assert (take_apart(made) is not None) == sound(made)


@given(st.sampled_from(EVENTS), st.data())
@settings(max_examples=500, deadline=None)
def test_an_event_that_is_no_json_is_found_behind_a_right_checksum(text, data):
    """Somebody who can count can fit the CRC: an event is strict JSON nevertheless, or refused (promise A3)."""
    changed = bytearray(text)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(changed) - 1)) if changed else 0
        how, byte = data.draw(st.sampled_from("cid")), data.draw(st.sampled_from(BYTES))
        changed[at : at + (how != "i")] = b"" if how == "d" else bytes([byte])
    made = block_of(b'{"z":0}', bytes(changed))
    assert (take_apart(made) is not None) == sound(made)


@pytest.mark.parametrize(
    "text",
    [
        b"{", b'{"a":NaN}', b'{"a":1,}', b"{'a':1}", b'{"a":01}', b"{a:1}", b'{"a":/**/1}', b"[]", b"1", b"null", b"",
        b"{} ", rb'{"a":"\ud83d"}', rb'{"a":"\ude00"}', rb'{"a":"\uD83D\u0041"}',
        b'{"a":"\x7f"}', b'{"a":"\xc3\xa9"}',
    ],
)  # fmt: skip
def test_no_event(text):
    """What is no object in strict JSON in ASCII is found, one by one and many at a time."""
    good = [b'{"a":%d}' % at for at in range(5)]
    assert take_apart(block_of(*good)) is not None
    assert take_apart(block_of(*good, text, *good)) is None
    assert problem_of(line(text), 0, None, strict=True)[1]


def test_half_a_character_is_no_text():
    """A lone surrogate is found, and a pair of them is a character."""
    assert take_apart(block_of(b"{}", rb'{"a":"\ud83d\ude00"}')) is not None
    assert problem_of(line(rb'{"a":"\ud83d"}'), 0, None, strict=True) == (None, HALF)


def test_lines_that_together_look_like_json():
    """A line that closes a bracket which another opens is found, though both together are JSON."""
    assert take_apart(block_of(b'{"a":[', b'"b":1}]}')) is None
    assert take_apart(block_of(b'{"a":1', b'}},{"b":{}')) is None


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b'"seq":0', b'"seq":00'), (b'"seq":0', b'"seq":-0'), (b'"seq":0', b'"seq":0.0'), (b'"seq":0', b'"seq":"0"'),
        (b'"n":0', b'"n":-1'), (b'"n":0', b'"n":1e0'), (b'"last":true', b'"last":false'), (b'"last":true', b'"last":1'),
        (b'"last":true,', b'"last":true, '), (b'{"seq"', b'{"more":1,"seq"'), (b'"e1"', b'"E1"'), (b'"e1"', b'""'),
        (b'"e1"', rb'"\u0065\u0031"'), (b'-0"', b'-00"'), (b'-0"', b'-"'), (b'-0"', b'-0 "'), (b'"n":0,', b""),
        (b'"seq":0,"epoch":"e1"', b'"epoch":"e1","seq":0'), (b'"seq":0,', b'"seq":0,"seq":0,'),
    ],
)  # fmt: skip
def test_a_frame_has_one_form(right, wrong):
    """Keys, their order, numbers and spaces before the event are those of a line, or it is none."""
    good = line(b"{}") + b"\n"
    assert good.count(right) == 1
    assert take_apart(good) is not None
    assert take_apart(good.replace(right, wrong)) is None


def test_checksum_in_one_form():
    """A CRC has eight small digits."""
    text = b'{"a":1}'
    good, crc = line(text), b"%08x" % zlib.crc32(text)
    assert crc.upper() != crc
    assert take_apart(good + b"\n") is not None
    for wrong in (crc.upper(), b"0" + crc, b"", b"00000000"):
        assert take_apart(good.replace(b'"crc":"%b"' % crc, b'"crc":"%b"' % wrong) + b"\n") is None


def test_depth():
    """What is nested as deep as anybody may record is read; a thousandfold more is refused, and nothing ends."""
    assert take_apart(block_of(b'{"a":' + b"[" * 100 + b"]" * 100 + b"}")) is not None
    assert take_apart(block_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}")) is None


def test_what_can_be_told_at_once_can_be_told_alone():
    """An event at the edge of what Python reads, by depth or by digits, is taken in both ways or in neither."""
    for levels in range(900, 1001):
        text = b'{"a":' + b"[" * levels + b"]" * levels + b"}"
        assert take_apart(block_of(text)) is None or sound(block_of(text))
    for digits in (640, 4300, 4301, 5000):
        for made in (b"[" + b"7" * digits + b"]", b'"' + b"7" * digits + b'"'):
            data = block_of(b"{}", b'{"a":' + made + b"}")
            assert (take_apart(data) is not None) == sound(data)
    assert problem_of(line(b'{"a":' + b"1" * 5000 + b"}"), 0, None, strict=True)[1].endswith("than can be read")


@pytest.mark.parametrize("name", [b"seq", b"n"])
def test_numbers_have_twenty_digits(name):
    """A line's own numbers have at most as many digits as a stream's."""
    for number, right in ((b"9" * 20, True), (b"1" + b"0" * 20, False), (b"9" * 300, False)):
        data = line(b"{}").replace(b'"%b":0' % name, b'"%b":%b' % (name, number)) + b"\n"
        assert sound(data) == (take_apart(data) is not None) == right


def test_every_line_that_json_writes():
    """Whatever `json.dumps` makes of texts and numbers is taken as it is."""
    for value in ('\x00\x1f"\\/\u2028é😀', -0.0, 1.5e-300, 2**63, -(2**64), 10**300, [[]], {"": None}):
        text = json.dumps({"v": value}, separators=(",", ":")).encode()
        assert take_apart(block_of(text)).events == [text]
        assert read_event(text) == {"v": value}


def test_without_the_package():
    """Where msgspec is missing, the error says what to install."""
    code = (
        "import sys; sys.modules['msgspec'] = None\n"
        "from poimen_tasks.audit.blocks import take_apart\n"
        "from poimen_tasks.errors import AuditUnavailable\n"
        "try: take_apart(b'')\n"
        "except AuditUnavailable as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "msgspec: pip install 'poimen-tasks[audit]'" in done.stdout
