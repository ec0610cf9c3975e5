"""The wire format: what it carries, what it refuses and in which words, and its canonical form."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import os
import pickle
import struct
import subprocess
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import kombu
import msgpack
import pytest
import zstandard
from celery import Celery, chain, chord, group
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import serialization
from kombu.exceptions import ContentDisallowed, DecodeError, EncodeError

from poimen_tasks.codec import (
    MAX_DEPTH,
    MAX_VALUES,
    canonical,
    compress,
    decode,
    encode,
    encode_many,
    frame,
    input_hash,
    jsonable,
    oversized,
)
from poimen_tasks.errors import PayloadTooLarge, SerializationError
from poimen_tasks.model import ErrorInfo, ItemStatus
from poimen_tasks.serializer import CONTENT_TYPE, register

Color = enum.Enum("Color", {"RED": "red"}, type=str)
Level = enum.IntEnum("Level", ["LOW"])
Pair = namedtuple("Pair", "a b")  # noqa: PYI024 - the kind that must be refused


@dataclass
class Plain:
    """A class that the wire does not know."""

    a: int = 1


class Model:
    """Looks like a pydantic model."""

    def model_dump(self) -> None:
        """Return nothing."""


def offsets() -> st.SearchStrategy[timezone]:
    day = 24 * 3600 - 1
    return st.integers(-day, day).map(lambda seconds: timezone(timedelta(seconds=seconds)))


def zones() -> st.SearchStrategy[tzinfo]:
    return offsets() | st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kathmandu"), UTC])


INTS = st.integers(-(2**63), 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FINITE = (
    st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | TEXT | st.binary() | st.dates() | st.timedeltas()
    | st.decimals(allow_nan=False) | st.uuids() | st.datetimes(timezones=zones())
)  # fmt: skip
LEAVES = FINITE | st.floats() | st.decimals()


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
    )


VALUES = nested(LEAVES)
CANONICAL = nested(FINITE)


def exact(value: Any) -> Any:
    """A value in a form in which types, signs, UTC offsets and nesting show, and the order of dicts does not."""
    if isinstance(value, dict):
        return sorted((key, exact(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ["list", *map(exact, value)]
    if isinstance(value, datetime):
        return f"datetime {value.isoformat()}"
    return f"{type(value).__name__} {value!r}"


def deep(depth: int, kind: Any = list) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else (value,) if kind is tuple else {"k": value}
    return value


def refusal(value: Any, what: str = "value") -> str:
    with pytest.raises(SerializationError) as caught:
        encode(value, what=what)
    return str(caught.value)


# --- what is carried


@given(VALUES)
@example(math.nan)
@example(Decimal("sNaN123"))
@example(datetime(1893, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))
def test_round_trip(value: Any) -> None:
    """Whatever the codec takes comes back equal, of the same type, a datetime with its UTC offset (fault F04)."""
    assert exact(decode(encode(value))) == exact(value)


@given(st.lists(VALUES, max_size=6))
def test_many_are_one_list(values: list[Any]) -> None:
    """Many values encoded in one call, and the same values framed one by one, are the bytes of their list."""
    blob = encode_many(values, name=str)
    assert blob == encode(values) == frame([encode(value) for value in values])


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_frames_of_any_length(count: int) -> None:
    """A frame of any number of parts is a list of that length."""
    assert decode(frame([encode(7)] * count)) == [7] * count


@pytest.mark.parametrize("value", [(), (1, (2, [3])), {"a": (1,)}])
def test_tuples_come_back_as_lists(value: Any) -> None:
    """A tuple comes back as a list, as in JSON."""
    assert encode(value) == encode(json.loads(json.dumps(value)))


@pytest.mark.parametrize("value", [-(2**63), 2**63, 2**64 - 1])
def test_64_bit_ints(value: int) -> None:
    """Signed and unsigned 64-bit ints are carried exactly (fault F05)."""
    assert decode(encode(value)) == value


# --- what is refused, and how


FOREIGN = [
    ({1}, "set", "use a list"),
    (frozenset(), "frozenset", "use a list"),
    (Color.RED, f"{__name__}.Color", "use its .value"),
    (Level.LOW, f"{__name__}.Level", "use its .value"),
    (Pair(1, 2), f"{__name__}.Pair", "use tuple(value)"),
    (OrderedDict(), "collections.OrderedDict", "use dict(value)"),
    (bytearray(b"x"), "bytearray", "use bytes(value)"),
    (memoryview(b"x"), "memoryview", "use bytes(value)"),
    (iter([]), "list_iterator", "use list(value)"),
    ((i for i in ()), "generator", "use list(value)"),
    (PurePosixPath("/x"), "pathlib.PurePosixPath", "use str(value)"),
    (1j, "complex", "use [value.real, value.imag]"),
    (time(1), "datetime.time", "use its isoformat()"),
    (ValueError("x"), "ValueError", "use its text"),
    (Plain(), f"{__name__}.Plain", "use dataclasses.asdict(value)"),
    (Model(), f"{__name__}.Model", "use value.model_dump()"),
    (type("Text", (str,), {})("x"), f"{__name__}.Text", "use str(value)"),
    (type("Moment", (datetime,), {})(2025, 1, 1), f"{__name__}.Moment", "allowed are"),
    (type("MyDict", (dict,), {})(a=1), f"{__name__}.MyDict", "use dict(value)"),
    (msgpack.ExtType(9, b""), "msgpack.ext.ExtType", "use tuple(value)"),
    (msgpack.Timestamp(1), "msgpack.ext.Timestamp", "allowed are"),
    (type("View", (), {}), "type", "allowed are"),
    (object(), "object", "allowed are"),
    (MappingProxyType({}), "mappingproxy", "use dict(value)"),
    (print, "builtin_function_or_method", "allowed are"),
]


@pytest.mark.parametrize(("value", "name", "hint"), FOREIGN, ids=[name for _, name, _ in FOREIGN])
def test_foreign_types(value: Any, name: str, hint: str) -> None:
    """A type that the wire does not carry, a subclass of one that it does included, is refused with what to use."""
    text = refusal({"rows": [1, 2, 3, value]}, 'item "7": args[0]')
    assert text.startswith(f'item "7": args[0].rows[3]: {name} is not carried; ')
    assert hint in text
    assert text.endswith("allowed are None, bool, int, float, str, bytes, list, tuple, dict with str keys, aware "
                         "datetime, date, timedelta, Decimal, UUID")  # fmt: skip


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**6000], ids=int.bit_length)
def test_wider_ints(value: int) -> None:
    """An int over 64 bits is refused by its width, however many digits it has (fault F05)."""
    assert refusal([value]).startswith(f"value[0]: int of {value.bit_length()} bits; allowed are -2**63 to 2**64-1")


@pytest.mark.parametrize("key", [1, None, b"k", 1.5, (1,), Color.RED, 10**6000], ids=lambda key: type(key).__name__)
def test_other_keys(key: Any) -> None:
    """A dict key that is not a str is refused at dispatch, not lost at the worker (fault A15)."""
    text = refusal({"a": {key: 1}})
    assert text.startswith("value.a: dict key")
    assert f"of type {type(key).__name__}; allowed are str keys" in text


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "ok\udc80"])
def test_lone_surrogates(text: str) -> None:
    """Half a character is refused in values and in keys, with its place."""
    index = len(text) - 1
    assert refusal([text]).startswith(f"value[0]: str holds the lone surrogate {text[-1]!a} at index {index}")
    assert refusal({text: 1}).startswith("value: dict key holds the lone surrogate")


def test_naive_datetimes() -> None:
    """A datetime without a UTC offset is refused with the reason: nobody knows which moment it means."""
    text = refusal({"at": datetime(2025, 11, 29, 12)})  # noqa: DTZ001
    assert text.startswith("value.at: datetime 2025-11-29T12:00:00 is naive: which moment it means depends on the")
    silent = type("Silent", (tzinfo,), {"utcoffset": lambda *_: None})()
    assert "is naive" in refusal(datetime(2025, 11, 29, tzinfo=silent))


def test_a_value_that_changes_meanwhile() -> None:
    """A value that is bad when it is packed and good when it is looked at again is refused all the same."""
    for encoded in (encode, lambda value: encode_many([value, 1], name=lambda index: f"item {index}")):
        answers = iter([None, timedelta(0), timedelta(0)])
        fickle = type("Fickle", (tzinfo,), {"utcoffset": lambda *_, answers=answers: next(answers)})()
        with pytest.raises(SerializationError, match=r"(value|item 0 and 1 more): .*; allowed are None"):
            encoded(datetime(2025, 1, 1, tzinfo=fickle))


def test_offsets_of_whole_seconds() -> None:
    """A UTC offset may have seconds, as local mean times do, but no fraction of one: that would not come back."""
    moment = datetime(2000, 1, 1, tzinfo=timezone(timedelta(microseconds=1)))
    assert "has a UTC offset with a fraction of a second" in refusal({"at": moment})


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_depth(kind: Any) -> None:
    """Containers nest to the limit and no deeper; far deeper is the same error, not a crash."""
    assert exact(decode(encode(deep(MAX_DEPTH, kind)))) == exact(deep(MAX_DEPTH, kind))
    for depth in (MAX_DEPTH + 1, 100_000):
        assert refusal(deep(depth, kind)).endswith(f"{kind.__name__} nested deeper than {MAX_DEPTH}, the most allowed")


def test_depth_of_a_shared_part() -> None:
    """A part that stands in several places may be too deep in one of them only, and that one is named."""
    part = deep(70)
    assert decode(encode([part, [part]])) == [part, [part]]
    assert refusal({"a": part, "b": [part, [part, deep(59)]], "c": wrap(part, 60)}).startswith("value.c[0]")


def wrap(value: Any, times: int) -> Any:
    for _ in range(times):
        value = [value]
    return value


def test_cycles() -> None:
    """A value that contains itself is refused as such, with both places, and never by a RecursionError."""
    rows: list[Any] = [1]
    rows.append(rows)
    wide: dict[str, Any] = {}
    wide["self"] = {"a": [wide] * 10}
    assert refusal(rows) == "value[1]: list contains itself (it is also at the top); no cycles allowed"
    assert refusal([{"x": rows}]).startswith("value[0].x[1]: list contains itself (it is also at [0].x)")
    assert refusal(wide).startswith("value.self.a[0]: dict contains itself")


def test_small_structures_that_grow_without_end() -> None:
    """Sixty lists that hold one another twice would be 2**60 values: refused as too large, at once."""
    value: Any = []
    for _ in range(60):
        value = [value, value]
    with pytest.raises(PayloadTooLarge, match=f"over {MAX_VALUES:,} values inside one another"):
        encode(value)


def test_a_part_in_many_places() -> None:
    """The same sound part may stand in many places; it is a cycle that is refused, not sharing."""
    part = {"a": [1]}
    assert decode(encode([part] * 1000)) == [part] * 1000


def test_paths_are_readable() -> None:
    """The path to a culprit uses attribute style for plain keys, quotes for others, and is cut when it is too long."""
    assert refusal({"a b": [{"c": {1}}]}).startswith("value['a b'][0].c: set")
    assert refusal({"x\n" * 100: {1}}).startswith("value['x\\nx\\n")
    assert refusal(wrap({1}, 100)).startswith("value" + "[0]" * 12 + "...: set")
    assert refusal({"x\n" * 100: {1}}).isprintable()


@given(VALUES, st.sampled_from([{1}, 2**64, "\ud800", {1: 2}, datetime(2025, 1, 1)]), st.integers(0, 3))  # noqa: DTZ001
def test_one_bad_value_among_many(good: Any, bad: Any, before: int) -> None:
    """Encoding many refuses exactly what encoding one refuses, in the same words, naming the item (fault F06)."""
    values = [*[good] * before, {"x": [good, bad]}, good]
    with pytest.raises(SerializationError) as caught:
        encode_many(values, name=lambda index: f'item "{index}": args[0]')
    assert str(caught.value) == refusal(values[before], f'item "{before}": args[0]')


def test_names_are_made_for_errors_only() -> None:
    """Naming the items costs nothing while all goes well."""
    assert decode(encode_many([1, "a", {"b": [2]}], name=lambda _: pytest.fail("named"))) == [1, "a", {"b": [2]}]


# --- sizes


@given(st.lists(LEAVES | st.lists(LEAVES), max_size=8), st.integers(0, 40))
def test_limit_is_per_value(values: list[Any], limit: int) -> None:
    """Many values pass under a limit exactly when each does; the error names the first that does not (fault F12)."""
    over = [index for index, value in enumerate(values) if len(encode(value)) > limit]
    assert oversized(values, limit) == over
    if not over:
        assert encode_many(values, name=str, limit=limit) == encode(values)
        return
    with pytest.raises(
        PayloadTooLarge, match=f"^item {over[0]}: {len(encode(values[over[0]])):,} bytes encoded, allowed"
    ):
        encode_many(values, name=lambda index: f"item {index}", limit=limit)


@given(st.lists(TEXT.map(lambda text: text * 50), min_size=1, max_size=4), st.integers(1, 1100))
def test_oversized_texts(values: list[str], limit: int) -> None:
    """The shortcut for plain texts finds the same ones as measuring each."""
    assert oversized(values, limit) == [index for index, value in enumerate(values) if len(encode(value)) > limit]


def test_too_large_in_words() -> None:
    """A value over the limit is refused with its size, the limit and a way out (fault F12)."""
    with pytest.raises(PayloadTooLarge) as caught:
        encode("x" * 5000, what="item 7: args[0]", limit=1024)
    assert str(caught.value) == (
        "item 7: args[0]: 5,003 bytes encoded, allowed are at most 1,024; store it elsewhere and pass its place"
    )
    assert len(encode("x" * 1021, limit=1024)) == 1024


def test_decode_limit() -> None:
    """Bytes over the limit are refused before they are looked at."""
    with pytest.raises(PayloadTooLarge, match="11 bytes encoded, allowed are at most 10"):
        decode(b"\xc1" * 11, limit=10)


# --- decoding what others wrote


FRAME_OF_UNKNOWN_SIZE = zstandard.ZstdCompressor(write_content_size=False).compress(b"\xc0")
FOREIGN_BYTES = {
    "empty": b"",
    "cut": encode([1, 2, "abc"])[:-1],
    "trailing": encode(1) + b"\x00",
    "reserved byte": b"\xc1",
    "int keys": b"\x81\x01\x02",
    "bad utf-8": b"\xa1\xff",
    "promises 4 GiB": b"\xdd\xff\xff\xff\xff",
    "promises a long text": b"\xdb\xff\xff\xff\xff",
    "too deep": b"\x91" * 5000 + b"\x01",
    "unknown extension": msgpack.packb(msgpack.ExtType(7, b"x")),
    "no frame": msgpack.packb(msgpack.ExtType(6, b"x")),
    "cut frame": msgpack.packb(msgpack.ExtType(6, zstandard.compress(b"\xa1a" * 100)[:-3])),
    "frame without a size": msgpack.packb(msgpack.ExtType(6, FRAME_OF_UNKNOWN_SIZE)),
    "frame in a frame": msgpack.packb(
        msgpack.ExtType(6, zstandard.compress(msgpack.packb(msgpack.ExtType(6, zstandard.compress(b"\xc0")))))
    ),
    "frame that promises 4 TiB": msgpack.packb(
        msgpack.ExtType(6, b"\x28\xb5\x2f\xfd\xe0" + (1 << 42).to_bytes(8, "little"))
    ),
    "negative extension": msgpack.packb(msgpack.ExtType(99, b"x")),
    "naive datetime": msgpack.packb(msgpack.ExtType(1, b"2025-01-01T00:00:00")),
    "no datetime": msgpack.packb(msgpack.ExtType(1, b"now")),
    "date in another form": msgpack.packb(msgpack.ExtType(2, b"20250101")),
    "long timedelta": msgpack.packb(msgpack.ExtType(3, struct.pack(">iii", 2**31 - 1, 0, 0))),
    "timedelta in another form": msgpack.packb(msgpack.ExtType(3, struct.pack(">iii", 0, 90_000, 0))),
    "short timedelta": msgpack.packb(msgpack.ExtType(3, b"xx")),
    "no decimal": msgpack.packb(msgpack.ExtType(4, b"ten")),
    "decimal in another form": msgpack.packb(msgpack.ExtType(4, b" 1_0 ")),
    "decimal, not ASCII": msgpack.packb(msgpack.ExtType(4, "\uff11".encode())),
    "short uuid": msgpack.packb(msgpack.ExtType(5, b"x")),
    "pickle": pickle.dumps(Plain()),
    "json": b'{"a": 1}',
}


@pytest.mark.parametrize("data", FOREIGN_BYTES.values(), ids=FOREIGN_BYTES)
def test_foreign_bytes(data: bytes) -> None:
    """Bytes that the codec never writes are a SerializationError that names it, never a crash or a guess."""
    with pytest.raises(SerializationError, match=r"^encoded value: "):
        decode(data)


@pytest.mark.parametrize("data", [None, "text", 7, [1]])
def test_what_is_not_bytes(data: Any) -> None:
    """Decoding takes bytes only."""
    with pytest.raises(SerializationError, match=r"^encoded value: "):
        decode(data)


@given(st.binary())
def test_any_bytes(data: bytes) -> None:
    """Any bytes decode to a value of the listed types or raise SerializationError; no class is built (fault K02)."""
    try:
        value = decode(data)
    except SerializationError:
        return
    kinds = {type(None), bool, int, float, str, bytes, list, dict, datetime, date, timedelta, Decimal, UUID}
    assert _types(value) <= kinds


def _types(value: Any) -> set[type]:
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {type(value)}.union(*map(_types, parts))


def test_standard_timestamps_are_read() -> None:
    """A msgpack timestamp of another program is read as a UTC datetime."""
    found = decode(msgpack.packb(msgpack.Timestamp(1_764_417_600, 500_000_000)))
    assert found == datetime(2025, 11, 29, 12, 0, 0, 500_000, tzinfo=UTC)
    assert found.utcoffset() == timedelta(0)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_decodes(kind: Any) -> None:
    """Any buffer of bytes decodes, as broker clients hand them out."""
    assert decode(kind(encode([1, "a"]))) == [1, "a"]


# --- canonical form


@given(CANONICAL, CANONICAL)
def test_canonical_is_injective(first: Any, second: Any) -> None:
    """Two values have the same canonical bytes exactly when they are the same, types too (promise C2, fault G03)."""
    assert (canonical(first) == canonical(second)) is (exact(first) == exact(second))


@given(CANONICAL)
def test_canonical_outlives_the_wire(value: Any) -> None:
    """A value and what comes back of it over the wire have the same canonical bytes, and these decode to it."""
    assert canonical(decode(encode(value))) == canonical(value)
    assert exact(decode(canonical(value))) == exact(value)


@given(st.dictionaries(TEXT, CANONICAL, min_size=2, max_size=5), st.randoms())
def test_key_order_does_not_matter(value: dict[str, Any], random: Any) -> None:
    """Dicts with the same items in another order hash the same, inside of others too (promise C2, fault G06)."""
    items = list(value.items())
    random.shuffle(items)
    assert input_hash([{"x": dict(items)}]) == input_hash([{"x": value}])


def test_look_alikes_differ() -> None:
    """Values that Python calls equal or that print alike have hashes of their own (promise C2, fault G06)."""
    alike = [1, 1.0, True, "1", b"1", Decimal(1), Decimal("1.0"), [1], {"1": 1}, "True", None, "None", 0, 0.0, -0.0,
             False, "", b"", [], {}, [[]], Decimal(0), timedelta(0), [1, 23], [12, 3], ["a", "b"], ["ab"], ["a", ["b"]],
             [["a"], "b"], {"a": "b=1"}, {"a=b": "1"}, date(2025, 1, 1), "2025-01-01",
             datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
             UUID(int=1), UUID(int=1).bytes, str(UUID(int=1))]  # fmt: skip
    assert len({input_hash(value) for value in alike}) == len(alike)


def test_a_tuple_hashes_as_its_list() -> None:
    """A tuple is a list on the wire, so it is the same input."""
    assert input_hash((1, (2,))) == input_hash([1, [2]])


@pytest.mark.parametrize("nan", [math.nan, Decimal("NaN"), Decimal("sNaN")])
def test_nan_has_no_canonical_form(nan: Any) -> None:
    """NaN equals nothing, so it is refused as a cache key with its place, though the wire carries it (fault G06)."""
    assert exact(decode(encode(nan))) == exact(nan)
    with pytest.raises(SerializationError, match=r"^input\.a\[1\]: (float|Decimal) NaN equals nothing"):
        canonical({"a": [1, nan]}, what="input")


def test_unhashable_input() -> None:
    """Input that the wire does not carry is a clear error, not a hash of its repr (promise C2, fault G06)."""
    with pytest.raises(SerializationError, match=r"^input\[0\]: set is not carried"):
        input_hash([{1}], what="input")


def test_input_hash_is_stable() -> None:
    """The hash is the sha256 of the canonical bytes, which are pinned: a changed hash would empty every cache."""
    value = {"b": [1, 2.5, None, True], "a": {"text": "ü", "raw": b"\x00"}}
    pinned = bytes.fromhex("82a16182a3726177c40100a474657874a2c3bca1629401cb4004000000000000c0c3")
    assert canonical(value) == pinned
    assert input_hash(value) == hashlib.sha256(pinned).hexdigest()


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (datetime(2025, 11, 29, 12, tzinfo=timezone(timedelta(hours=2))), b"\xc7\x19\x012025-11-29T12:00:00+02:00"),
        (date(2025, 11, 29), b"\xc7\x0a\x022025-11-29"),
        (timedelta(days=-1, seconds=2, microseconds=3), b"\xc7\x0c\x03\xff\xff\xff\xff\0\0\0\x02\0\0\0\x03"),
        (Decimal("1.50"), b"\xd6\x041.50"),
        (UUID(int=7), b"\xd8\x05" + bytes(15) + b"\x07"),
    ],
)
def test_extension_types_are_pinned(value: Any, data: bytes) -> None:
    """The bytes of the five extension types are part of the stored format and do not change."""
    assert encode(value) == data


# --- JSON


@given(nested(LEAVES | st.text()))
def test_jsonable_is_strict_json(value: Any) -> None:
    """Whatever the wire carries has a JSON form without NaN, in text that is valid UTF-8 (fault F07)."""
    text = json.dumps(jsonable(value), allow_nan=False, ensure_ascii=False)
    assert json.loads(text.encode("utf-8")) == jsonable(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        (datetime(2025, 11, 29, 12, tzinfo=UTC), "2025-11-29T12:00:00+00:00"),
        (date(2025, 11, 29), "2025-11-29"),
        (timedelta(minutes=1.5), 90.0),
        (b"\x00\xff", "AP8="),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/x\udc80"), "/x\\udc80"),
        (ItemStatus.FAILED, "failed"),
        (Level.LOW, 1),
        ((1, [2]), [1, [2]]),
        ({Color.RED: 1}, {"red": 1}),
        (ErrorInfo(type="E", message="m"), {"type": "E", "message": "m", "traceback": ""}),
    ],
)
def test_jsonable_forms(value: Any, plain: Any) -> None:
    """Each type has one documented JSON form; a value of this package gives its `to_dict()`."""
    assert jsonable(value) == plain
    assert type(jsonable(value)) is type(plain)


def test_jsonable_refuses() -> None:
    """What has no JSON form is refused with its place, and so is a cycle."""
    rows: list[Any] = []
    rows.append(rows)
    for value, text in (({"a": [object()]}, r"^report\.a\[0\]: object is not"), ({1: 2}, "str keys"), (rows, "deeper")):
        with pytest.raises(SerializationError, match=text):
            jsonable(value, what="report")


# --- kombu


@pytest.fixture
def app() -> Celery:
    register()
    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
    app.conf.update(task_serializer="poimen", result_serializer="poimen", accept_content=["poimen"])
    return app


def test_registered_with_kombu() -> None:
    """Kombu encodes and decodes with the codec under its name and content type."""
    register()
    register()
    content_type, encoding, data = serialization.dumps([1, {"a": UUID(int=1)}], serializer="poimen")
    assert (content_type, encoding, data) == ("application/x-poimen", "binary", encode([1, {"a": UUID(int=1)}]))
    assert serialization.loads(data, content_type, encoding, accept={content_type}) == [1, {"a": UUID(int=1)}]


def test_kombu_refuses_pickle_and_foreign_values() -> None:
    """With the codec accepted alone a pickle is refused unread, and bad values are kombu's own errors (fault K01)."""
    register()
    with pytest.raises(ContentDisallowed):
        serialization.loads(pickle.dumps(1), "application/x-python-serialize", "binary", accept={CONTENT_TYPE})
    with pytest.raises(EncodeError, match=r"message\[0\]: set is not carried"):
        serialization.dumps([{1}], serializer="poimen")
    with pytest.raises(DecodeError, match="encoded value"):
        serialization.loads(b"\xc1", CONTENT_TYPE, "binary", accept={CONTENT_TYPE})


def test_native_canvas_travels(app: Celery) -> None:
    """Messages of Celery's own chains, groups and chords, which hold signatures, go over the wire and back."""

    @app.task(shared=False)
    def add(*args: Any) -> Any:
        return args

    step = chain(add.s(datetime(2025, 1, 1, tzinfo=UTC)), group(add.s(1), add.s(2)), chord([add.s(3)], add.s(4)))
    step.link_error(add.si("failed"))
    for signature in (step, chord([add.s(1), step], add.s()), add.s(b"raw").set(link=add.s())):
        frozen = dict(signature)
        body = (
            [frozen, signature],
            {"next": signature},
            {"callbacks": [signature], "chord": signature, "chain": [signature]},
        )
        content_type, encoding, data = serialization.dumps(body, serializer="poimen")
        back = serialization.loads(data, content_type, encoding, accept={content_type})
        assert exact(back) == exact(body)
        assert isinstance(app.signature(back[2]["chord"]), type(signature))


def test_a_message_over_a_broker(app: Celery) -> None:
    """A task message with rich arguments crosses a broker unchanged."""
    sent = [datetime(2025, 1, 1, tzinfo=UTC), UUID(int=3), b"\x00", Decimal("0.10")]
    with app.connection_for_write() as connection:
        queue = kombu.Queue("q", channel=connection)
        queue.declare()
        app.signature("t", args=sent).apply_async(connection=connection, queue="q", producer=connection.Producer())
        message = queue.get(accept=["poimen"])
    assert exact(message.decode()[0]) == exact(sent)


def test_cycles_in_messages(app: Celery) -> None:
    """A message that contains itself is kombu's EncodeError too, signatures in it or not."""
    rows: list[Any] = [app.signature("t")]
    rows.extend([rows] * 10)
    for body in (rows, [rows, deep(5000)], [deep(5000)]):
        with pytest.raises(EncodeError, match=r"contains itself|nested deeper"):
            serialization.dumps(body, serializer="poimen")


def test_results_through_a_backend(app: Celery) -> None:
    """A result backend stores and reads results and failures with the codec."""
    backend = app.backend
    backend.store_result("a", {"at": datetime(2025, 1, 1, tzinfo=UTC)}, "SUCCESS")
    backend.store_result("b", ValueError("no", {1}), "FAILURE")
    assert backend.get_task_meta("a")["result"] == {"at": datetime(2025, 1, 1, tzinfo=UTC)}
    assert "no" in str(backend.get_task_meta("b")["result"])


def test_imports_no_celery() -> None:
    """The leaf modules import neither Celery nor kombu: rooms that know no Celery use them."""
    code = (
        "import importlib.util as u, sys, types; "
        "root = u.find_spec('poimen_tasks').submodule_search_locations; "
        "p = types.ModuleType('poimen_tasks'); p.__path__ = list(root); sys.modules['poimen_tasks'] = p; "
        "import poimen_tasks.codec, poimen_tasks.ids, poimen_tasks.policy, poimen_tasks.settings, poimen_tasks.model; "
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'celery', 'kombu', 'redis'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("value", ["x" * 5000, list(range(2000)), {"a": b"y" * 3000, "b": [None] * 9}])
def test_a_compressed_value_reads_as_the_value(value: Any) -> None:
    """A large value takes fewer bytes compressed, and is the same value, also as a part of others."""
    blob = encode(value)
    small = compress(blob)
    assert len(small) < 0.9 * len(blob)
    assert exact(decode(small)) == exact(value)
    assert exact(decode(frame([small, encode(1)]))) == exact([value, 1])


@pytest.mark.parametrize("value", ["short", os.urandom(4000)], ids=["short", "random"])
def test_what_would_gain_nothing_stays_as_it_is(value: Any) -> None:
    """Short values, and those that do not get smaller, are not compressed."""
    assert compress(encode(value)) == encode(value)
