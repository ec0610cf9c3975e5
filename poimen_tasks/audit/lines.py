"""A line of the log: how it is written, how it is read, and which lines may follow which.

`{"seq":12,"epoch":"<hex>","id":"1732893000000-0","n":0,"last":true,"crc":"<8 hex>","event":{…}}`: ASCII, strict JSON,
keys in this order, without spaces. `seq` counts the lines from 0. `epoch` and `id` are those of the stream's entry, `n`
counts the lines that it became, and `last` stands on the last of them. `crc` is the CRC-32 of the event's bytes.

The lines are ordered by (epoch, id, n), the epochs as they came. Lines that the sealer itself adds stand where it was:

- `audit.epoch` begins every epoch but the first one of a log;
- `store.rollback` may go back to an earlier id of the same epoch: the store lost what came behind it;
- any other `audit.…` may repeat the id of the line before it.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from operator import eq, le, lt, not_
from typing import NamedTuple, Self

from poimen_tasks.audit.depth import too_deep

__all__ = [
    "LEVELS", "LINE", "PRINTABLE", "Columns", "Head", "Line", "Lines", "Place", "event_type", "follows", "head_of",
    "in_order", "places_of", "problem_of", "read_event",
]  # fmt: skip


class Line(NamedTuple):
    """What the sealer hands over for one line.

    Attributes:
        epoch: the stream's random epoch, in hex.
        id: the entry's id in the stream.
        n: the how manieth line of the entry it is, from 0.
        last: whether it is the last one.
        event: compact strict JSON in ASCII, an object.
    """

    epoch: str
    id: str
    n: int
    last: bool
    event: bytes


class Lines(NamedTuple):
    """Many lines, a column for each field of `Line`; what is done to all of them at once costs a tenth."""

    epochs: list[str]
    ids: list[str]
    numbers: list[int]
    lasts: list[bool]
    events: list[bytes]

    @classmethod
    def of(cls, lines: Sequence[Line]) -> Self:
        """The columns of lines."""
        return cls(*map(list, zip(*lines, strict=True))) if lines else cls([], [], [], [], [])

    @classmethod
    def single(cls, epoch: str, ids: list[str], events: list[bytes]) -> Self:
        """Entries of a line each."""
        count = len(ids)
        return cls([epoch] * count, ids, [0] * count, [True] * count, events)

    def add(self, epoch: str, ident: str, events: list[bytes]) -> None:
        """Add a whole entry, of at least one line."""
        count = len(events)
        self.epochs.extend([epoch] * count)
        self.ids.extend([ident] * count)
        self.numbers.extend(range(count))
        self.lasts.extend([False] * (count - 1))
        self.lasts.append(True)
        self.events.extend(events)

    def part(self, start: int, end: int) -> Lines:
        """Some of them."""
        epochs, ids, numbers, lasts, events = self
        return Lines(epochs[start:end], ids[start:end], numbers[start:end], lasts[start:end], events[start:end])


class Place(NamedTuple):
    """Where a line stands in the stream; compares as the lines of one epoch are ordered."""

    epoch: bytes
    ms: int
    sub: int
    n: int
    last: bool

    @property
    def id(self) -> str:
        """The entry's id."""
        return f"{self.ms}-{self.sub}"


class Head(NamedTuple):
    """A line, taken apart."""

    seq: int
    place: Place
    crc: int
    event: bytes


_NUMBER = rb"(0|[1-9]\d{0,19}+)"
_PARTS = (
    rb'\{"seq":', _NUMBER, rb',"epoch":"([0-9a-f]{1,64}+)","id":"', _NUMBER, rb"-", _NUMBER, rb'","n":', _NUMBER,
    rb',(?:"last":(true),)?+"crc":"([0-9a-f]{8})","event":(\{[^\n]*\})\}',
)  # fmt: skip
#: Every line of a block: `findall` gives seq, both numbers of the id, n, last, crc and event.
LINE = re.compile(rb"^" + rb"".join(_PARTS[:3]) + rb"".join(_PARTS[3:]) + rb"$", re.MULTILINE)
_ONE = re.compile(rb"".join(_PARTS))
#: What may stand in a line, besides its newline.
PRINTABLE = bytes(range(0x20, 0x7F))
#: How deep an event may be nested: less than Python can read anywhere, and four times what anybody may record.
LEVELS = 500
_EPOCH = re.compile(r"[0-9a-f]{1,64}").fullmatch
_TEXT_ID = r"(?:0|[1-9][0-9]{0,19}+)-(?:0|[1-9][0-9]{0,19}+)"
_ID, _IDS = re.compile(_TEXT_ID).fullmatch, re.compile(rf"{_TEXT_ID}(?:\n{_TEXT_ID})*+").fullmatch


class Columns(NamedTuple):
    """The places of many lines, a column each; `ids` are both numbers of each."""

    epochs: Sequence[bytes]
    ids: Sequence[tuple[int, int]]
    numbers: Sequence[int]
    lasts: Sequence[bool]

    def place(self, at: int) -> Place:
        """Where one of them stands."""
        return Place(self.epochs[at], *self.ids[at], self.numbers[at], self.lasts[at])


def places_of(lines: Lines) -> Columns:
    """Where lines that are handed over stand.

    Raises:
        ValueError: an epoch or an id is none.
    """
    for epoch in set(lines.epochs):
        if not _EPOCH(epoch):
            raise ValueError(f"epoch {epoch!r:.80} is not 1 to 64 hex digits")
    ids = list(dict.fromkeys(lines.ids))
    text = "\n".join(ids)
    if not _IDS(text) or text.count("\n") != len(ids) - 1:
        wrong = next(ident for ident in ids if not _ID(ident))
        raise ValueError(f"id {wrong!r:.60} is no id of a stream, like 1732893000000-0")
    parts = list(map(int, text.replace("\n", "-").split("-")))
    numbers = list(zip(parts[::2], parts[1::2], strict=True))
    if len(ids) != len(lines.ids):
        numbers = list(map(dict(zip(ids, numbers, strict=True)).__getitem__, lines.ids))
    coded = {epoch: epoch.encode() for epoch in set(lines.epochs)}
    return Columns(list(map(coded.__getitem__, lines.epochs)), numbers, lines.numbers, lines.lasts)


def in_order(columns: Columns) -> bool:
    """Whether lines obviously follow each other: whole entries of one epoch, ids rising. `follows` is the full rule.

    The first line may be any line of its entry.
    """
    epochs, ids, numbers, lasts = columns
    if len(set(epochs)) > 1:
        return False
    after = ids[1:]
    if all(lasts):
        return not any(numbers[1:]) and all(map(lt, ids, after))
    expected = [0 if last else number + 1 for number, last in zip(numbers, lasts, strict=True)]
    # Rising where an entry begins, the same one within it.
    return (
        expected[:-1] == list(numbers[1:])
        and list(map(eq, ids, after)) == list(map(not_, lasts[:-1]))
        and all(map(le, ids, after))
    )


def head_of(line: bytes) -> Head:
    """A line taken apart.

    Raises:
        ValueError: it has not the form of a line; the text says what is wrong.
    """
    match = _ONE.fullmatch(line)
    if match is None:
        raise ValueError(_shape(line))
    if line.translate(None, PRINTABLE):
        raise ValueError("it holds a control character, or one that is not ASCII")
    seq, epoch, ms, sub, n, last, crc, event = match.groups()
    return Head(int(seq), Place(epoch, int(ms), int(sub), int(n), last is not None), int(crc, 16), event)


def _shape(line: bytes) -> str:
    """In words, why this is no line."""
    if not line:
        return "it is blank"
    if not line.startswith(b'{"seq":'):
        return 'it does not begin with {"seq":'
    return "its keys or values before the event are not those of a line" if line.endswith(b"}}") else "it ends early"


def read_event(event: bytes) -> dict[str, object]:
    """An event's JSON, strictly.

    Raises:
        ValueError: it is no object in strict JSON (RFC 8259), or holds half of a character (a lone surrogate).
    """
    try:
        value = _DECODER.decode(event.decode())
        if b"\\ud" in event or b"\\uD" in event:  # half of a character can only stand there as an escape
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise ValueError("its event is not UTF-8") from None
    except UnicodeEncodeError:
        raise ValueError("its event holds half of a character (a lone surrogate)") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"its event is not JSON: {error.msg} at byte {error.pos}") from None
    except RecursionError:
        raise ValueError(_DEEP) from None
    except ValueError as error:  # ours of a constant, or that of `int`
        raise ValueError(_LONG_NUMBER if "int_max_str_digits" in str(error) else str(error)) from None
    if type(value) is not dict:
        raise ValueError("its event is no object")
    if event.count(b"[") + event.count(b"{") > LEVELS and too_deep(value, LEVELS):
        raise ValueError(_DEEP)
    return value


_DEEP = "its event is nested too deep to be read"
_LONG_NUMBER = "its event holds a whole number of more digits than can be read"


def _constant(text: str) -> object:
    raise ValueError(f"its event is not strict JSON: {text}")


_DECODER = json.JSONDecoder(parse_constant=_constant)


def event_type(event: bytes) -> str:
    """The type that an event names; empty: none."""
    try:
        return str(read_event(event).get("event_type", ""))
    except ValueError:
        return ""


def follows(before: Place | None, place: Place, kind: str) -> str:
    """Why a line may not stand behind another; empty: it may.

    Args:
        before: the line before it; None: there is none.
        place: the line.
        kind: the type of its event, which only matters where the order is broken.
    """
    if before is None:
        return f"the log begins with line {place.n} of entry {place.id}" if place.n else ""
    same = place.epoch == before.epoch and place[1:3] == before[1:3]
    if not before.last:
        going_on = same and place.n == before.n + 1
        return "" if going_on else f"entry {before.id} is only half there: line {before.n + 1} of it is missing"
    if place.n:
        return f"line {place.n} of entry {place.id} stands where an entry begins"
    if place.epoch != before.epoch:
        return "" if kind == "audit.epoch" else "the epoch changes without an audit.epoch event"
    allowed = place[1:3] > before[1:3] or kind == "store.rollback" or (same and kind.startswith("audit."))
    return "" if allowed else f"entry {place.id} stands behind {before.id}, and no store.rollback event allows it"


def problem_of(
    line: bytes, seq: int, before: Place | None, *, ordered: bool = True, strict: bool = False
) -> tuple[Head | None, str]:
    """A line taken apart, and what is wrong with it at its place; empty: nothing.

    Args:
        line: without its newline.
        seq: the number that it has to have; -1: any.
        before: where the line before it stands; None: there is none.
        ordered: False: the line before it is not known.
        strict: whether its event is read, too; it costs the most.
    """
    try:
        head = head_of(line)
        if strict:
            read_event(head.event)
    except ValueError as error:
        return None, str(error)
    if seq not in {-1, head.seq}:
        return None, f"it says seq {head.seq} where line {seq} has to stand"
    if zlib.crc32(head.event) != head.crc:
        return None, "its event does not have its CRC"
    if ordered and follows(before, head.place, "") and (why := follows(before, head.place, event_type(head.event))):
        return None, why
    return head, ""
