"""Proofs that stand by themselves: a few hashes and the signed checkpoint that they lead to, as text.

- that one line is in the log: C2SP tlog-proof (https://c2sp.org/tlog-proof), with the line itself as its extra data;
- that some lines are: the hashes of the largest subtrees without them, from left to right;
- that the log of one checkpoint begins with that of an older one (RFC 6962, section 2.1.2).

All have one form: a line that says which, lines of a name and a value, hashes in base64, a blank line, the checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from poimen_tasks.audit.keys import public_key_at
from poimen_tasks.audit.merkle import (
    Subtree,
    consistency_proof,
    consistent,
    included,
    inclusion_proof,
    leaf_hash,
    subset_proof,
)  # fmt: skip
from poimen_tasks.audit.note import Checkpoint, open_checkpoint, read_note
from poimen_tasks.audit.segments import line_at, segments_in
from poimen_tasks.audit.tiles import HASH, TileReader
from poimen_tasks.errors import AuditCorrupt, InvalidArgument

__all__ = ["Kind", "Proof", "prove_growth", "prove_line", "prove_lines"]

_NUMBER = re.compile(r"0|[1-9]\d{0,18}").fullmatch


class Kind(StrEnum):
    """What a proof is about; its first line."""

    LINE = "c2sp.org/tlog-proof@v1"
    LINES = "poimen-tasks/audit-lines@v1"
    GROWTH = "poimen-tasks/audit-growth@v1"


_FIELDS = {Kind.LINE: ("extra", "index"), Kind.LINES: ("lines",), Kind.GROWTH: ("from", "root")}


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof as it is handed on; `check` trusts nothing of it but what leads to a signed root.

    Attributes:
        kind: what it is about.
        hashes: in the order of its kind, 32 bytes each.
        note: the checkpoint that it leads to.
        index: the number of the line; of how many lines it is; or how many lines the older checkpoint covers.
        extra: the line itself; or the root of the older checkpoint.
    """

    kind: Kind
    hashes: tuple[bytes, ...]
    note: bytes = field(repr=False)
    index: int
    extra: bytes = b""

    @property
    def data(self) -> bytes:
        """What the file holds."""
        encoded = base64.b64encode(self.extra).decode()
        values = {"extra": encoded, "index": self.index, "lines": self.index, "from": self.index, "root": encoded}
        lines = [str(self.kind), *(f"{name} {values[name]}" for name in _FIELDS[self.kind])]
        lines += [base64.b64encode(one).decode() for one in self.hashes]
        return "\n".join((*lines, "", "")).encode() + self.note

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; hashes in hex."""
        about: Mapping[Kind, dict[str, Any]] = {
            Kind.LINE: {"seq": self.index, "line": self.extra.decode("ascii", "replace")},
            Kind.LINES: {"lines": self.index},
            Kind.GROWTH: {"from": self.index, "root": self.extra.hex()},
        }
        hashes = [one.hex() for one in self.hashes]
        return {"kind": self.kind, **about[self.kind], "hashes": hashes, "checkpoint": self.note.decode()}

    @classmethod
    def is_one(cls, data: bytes) -> bool:
        """Whether it looks like a proof."""
        return data.partition(b"\n")[0] in {kind.encode() for kind in Kind}

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> Proof:
        """A proof from its file.

        Raises:
            AuditCorrupt: it is none.
        """
        head, _, note = data.partition(b"\n\n")
        lines = head.decode("ascii", "replace").split("\n")
        try:
            kind = Kind(lines[0])
            names = _FIELDS[kind]
            values = dict(zip(names, lines[1 : len(names) + 1], strict=True))
            index, extra = _read(kind, {name: _value(name, line) for name, line in values.items()})
            made = cls(kind, tuple(_hash(line) for line in lines[len(names) + 1 :]), note, index, extra)
        except ValueError as error:
            raise AuditCorrupt(f"{where}: it is no proof, or a damaged one: {error}") from None
        return made


def _value(name: str, line: str) -> str:
    found, blank, value = line.partition(" ")
    if not blank or found != name:
        raise ValueError(f"expected a line `{name} …`, got {line!r:.60}")
    return value


def _read(kind: Kind, values: Mapping[str, str]) -> tuple[int, bytes]:
    number = values[{Kind.LINE: "index", Kind.LINES: "lines", Kind.GROWTH: "from"}[kind]]
    if not _NUMBER(number):
        raise ValueError(f"{number!r:.30} is no number")
    return int(number), _base64(values.get("extra", values.get("root", "")))


def _hash(line: str) -> bytes:
    data = _base64(line)
    if len(data) != HASH:
        raise ValueError(f"{line!r:.60} is not the base64 of a hash")
    return data


def _base64(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if base64.b64encode(data).decode() != text:
        raise ValueError(f"{text!r:.60} is not base64")
    return data


def prove_line(directory: Path, seq: int, *, checkpoint: Path | None = None) -> Proof:
    """That a line is in the log.

    Args:
        directory: the log.
        seq: the number of the line.
        checkpoint: leads to this older checkpoint of the log; None: to the current one.

    Raises:
        InvalidArgument: the checkpoint does not cover the line.
        AuditUnavailable: there is no log, or it cannot be read.
        AuditCorrupt: the line, the tiles and the checkpoint do not fit each other.
    """
    note, found, subtree = _open(directory, checkpoint)
    _check_covered("seq", seq, found.size)
    line = line_at(directory, seq)
    hashes = inclusion_proof(seq, found.size, subtree)
    if not included(leaf_hash(line), seq, found.size, hashes, found.root):
        raise _unfit(directory, f"line {seq}")
    return Proof(Kind.LINE, tuple(hashes), note, seq, line)


def prove_lines(directory: Path, seqs: Sequence[int], *, checkpoint: Path | None = None) -> Proof:
    """That some lines are in the log; who checks it has the lines.

    Args:
        directory: the log.
        seqs: the numbers of the lines, in any order.
        checkpoint: leads to this older checkpoint of the log; None: to the current one.

    Raises:
        InvalidArgument: the checkpoint does not cover a line, or there are none.
        AuditUnavailable: there is no log, or it cannot be read.
        AuditCorrupt: tiles are missing.
    """
    note, found, subtree = _open(directory, checkpoint)
    wanted = sorted(set(seqs))
    if not wanted:
        raise InvalidArgument("lines: expected at least one line to prove, got none")
    for seq in (wanted[0], wanted[-1]):
        _check_covered("lines", seq, found.size)
    return Proof(Kind.LINES, tuple(subset_proof(wanted, found.size, subtree)), note, len(wanted))


def _check_covered(what: str, seq: int, size: int) -> None:
    if not size:
        raise InvalidArgument(f"{what}: the log has no sealed line yet, says the checkpoint; got {seq}")
    if not 0 <= seq < size:
        raise InvalidArgument(f"{what}: the checkpoint covers the lines 0 to {size - 1}, got {seq}")


def prove_growth(directory: Path, older: Path, *, checkpoint: Path | None = None) -> Proof:
    """That the log begins with what an older checkpoint signs.

    Args:
        directory: the log.
        older: the older checkpoint.
        checkpoint: leads to this one; None: to the current one.

    Raises:
        AuditUnavailable: there is no log, or it cannot be read.
        AuditCorrupt: the log does not begin so, or tiles are missing, or a checkpoint is not of this log.
    """
    note, found, subtree = _open(directory, checkpoint)
    old = open_checkpoint(read_note(older), public_key_at(directory / "key.pub"), where=str(older))
    if old.size > found.size:
        raise AuditCorrupt(
            f"{directory / 'checkpoint'}: it covers {found.size} lines, but {older} signs {old.size}: the log was cut "
            "or rolled back"
        )
    hashes = consistency_proof(old.size, found.size, subtree) if old.size else []
    if not consistent(old.size, found.size, hashes, old.root, found.root):
        raise _unfit(directory, f"the first {old.size} lines, which {older} signs,")
    return Proof(Kind.GROWTH, tuple(hashes), note, old.size, old.root)


def _open(directory: Path, checkpoint: Path | None) -> tuple[bytes, Checkpoint, Subtree]:
    """The checkpoint that a proof leads to, and where hashes come from."""
    if not (current := directory / "checkpoint").exists():
        segments_in(directory)
    verifier = public_key_at(directory / "key.pub")
    note = read_note(current)
    found = open_checkpoint(note, verifier, where=str(current))
    size = found.size
    if checkpoint is not None:
        note = read_note(checkpoint)
        found = open_checkpoint(note, verifier, where=str(checkpoint))
        if found.size > size:
            raise AuditCorrupt(f"{current}: it covers {size} lines, but {checkpoint} signs {found.size}: it was cut")
    return note, found, TileReader(directory, size).subtree


def _unfit(directory: Path, what: str) -> AuditCorrupt:
    return AuditCorrupt(
        f"{directory}: {what} and the tiles do not lead to the signed root; `poimen audit verify` looks for the place"
    )
