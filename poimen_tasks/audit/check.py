"""For an auditor who has no access to the log: exported lines, or proofs, against the public key and a checkpoint.

Lines are the bytes of the segments, in any files. All lines that a checkpoint covers prove themselves: they lead to the
signed root. Some of them need a proof of `prove_lines`; a proof of one line carries it. That the log only grew since an
older checkpoint is shown by all the lines, or by a proof of `prove_growth`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from poimen_tasks.audit.blocks import take_apart
from poimen_tasks.audit.keys import Verifier
from poimen_tasks.audit.lines import problem_of
from poimen_tasks.audit.merkle import consistent, included, leaf_hash, leaf_hashes, subset_root
from poimen_tasks.audit.note import Checkpoint, open_checkpoint, read_note
from poimen_tasks.audit.proof import Kind, Proof
from poimen_tasks.audit.report import Progress, Report
from poimen_tasks.audit.segments import Segment, exported_segment, numbered
from poimen_tasks.audit.tiles import WIDTH
from poimen_tasks.audit.walk import Tree, Walk
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable, InvalidArgument

__all__ = ["check"]

_SLICE, _HEAD = 1_000, 64


def check(
    files: Sequence[Path],
    *,
    key: Verifier,
    checkpoint: Path | None = None,
    against: Sequence[Path] = (),
    progress: Progress = lambda _done, _total: None,
) -> Report:
    """Check exported lines and proofs. Nothing but the key is trusted; a checkpoint has to be signed by it.

    Args:
        files: lines and proofs, told apart by their contents.
        key: the public key, from a trustworthy place.
        checkpoint: what the lines have to lead to. None: the one in the proofs.
        against: older checkpoints that the log has to have grown from.
        progress: called now and then.

    Returns:
        What was found; `lines` counts the proved ones.

    Raises:
        InvalidArgument: no files, or neither a checkpoint nor a proof, which has one.
        AuditUnavailable: a file cannot be read.
    """
    checking = _Checking(key, progress)
    try:
        checking.read(files)
        checking.choose(checkpoint)
    except AuditCorrupt as error:
        checking.report.add_error(error)
        return checking.report
    checking.run(against)
    return checking.report


class _Checking:
    """One check; its parts each add what they find."""

    def __init__(self, key: Verifier, progress: Progress) -> None:
        self.report = Report()
        self._key, self._progress = key, progress
        self._proofs: list[tuple[Path, Proof]] = []
        self._exported: list[Segment] = []
        self._checkpoint = Checkpoint(key.origin, 0, b"")
        self._tree: Tree | None = None

    def read(self, files: Sequence[Path]) -> None:
        """Tell lines and proofs apart."""
        if not files:
            raise InvalidArgument("files: expected exported lines or proofs, got none")
        for path in files:
            data = _head(path)
            if Proof.is_one(data):
                self._proofs.append((path, Proof.parse(read_note(path), where=str(path))))
            elif segment := exported_segment(path):
                self._exported.append(segment)
            else:
                self.report.notes.append(f"{path} is empty")
        self._exported.sort()

    def choose(self, path: Path | None) -> None:
        """The checkpoint that everything has to lead to."""
        if path is None and not self._proofs:
            raise InvalidArgument("checkpoint: the lines have to lead to one; give its file (--checkpoint)")
        found = [(path, read_note(path))] if path else [(self._proofs[0][0], self._proofs[0][1].note)]
        self._checkpoint = open_checkpoint(found[0][1], self._key, where=str(found[0][0]))
        report, checkpoint = self.report, self._checkpoint
        report.origin, report.size, report.root = checkpoint.origin, checkpoint.size, checkpoint.root.hex()

    def run(self, against: Sequence[Path]) -> None:
        """Everything that was given."""
        proofs = [(path, proof) for path, proof in self._proofs if self._leads_here(path, proof)]
        some = [(path, proof) for path, proof in proofs if proof.kind is Kind.LINES]
        for path, proof in proofs:
            if proof.kind is Kind.LINE:
                self._check_line(path, proof)
        for path, proof in some:
            self._check_some(path, proof)
        if self._exported and not any(proof.kind is Kind.LINES for _, proof in self._proofs):
            self._check_all()
        grown = [proof for _, proof in proofs if proof.kind is Kind.GROWTH]
        for path in against:
            self._check_grown(path, grown)
        if not against and any(proof.kind is Kind.GROWTH for _, proof in self._proofs):
            self.report.add(
                self._proofs[0][0], "a proof that the log grew needs the older checkpoint beside it: --against"
            )

    def _leads_here(self, path: Path, proof: Proof) -> bool:
        try:
            own = open_checkpoint(proof.note, self._key, where=str(path))
        except AuditCorrupt as error:
            self.report.add_error(error)
            return False
        if own != self._checkpoint:
            self.report.add(
                path,
                f"it leads to a checkpoint over {own.size} lines, not to the given one over {self._checkpoint.size}; "
                "`poimen audit prove --checkpoint` makes one that does",
            )
        return own == self._checkpoint

    # ------------------------------------------------------------------------------------------ lines
    def _check_line(self, path: Path, proof: Proof) -> None:
        line, checkpoint = proof.extra, self._checkpoint
        why = problem_of(line, proof.index, None, ordered=False)[1]
        if not included(leaf_hash(line), proof.index, checkpoint.size, proof.hashes, checkpoint.root):
            why = f"it does not prove that its line is line {proof.index} of the log"
        if why:
            self.report.add(path, why)
        else:
            self.report.lines += 1
            self.report.notes.append(f"line {proof.index} reads {line.decode('ascii')}")

    def _check_some(self, path: Path, proof: Proof) -> None:
        """All exported lines together, with the proof about them."""
        report, leaves, last = self.report, list[tuple[int, bytes]](), -1
        for seq, leaf in heapq.merge(*(sorted(self._leaves(segment)) for segment in self._exported)):
            if seq != last:  # the same line may be in two exports; another one with its number leads elsewhere
                leaves.append((seq, leaf))
            elif leaf != leaves[-1][1]:
                report.add(path, f"there are two lines {seq} that differ")
            last = seq
        if report.problems:
            return
        size = self._checkpoint.size
        if last >= size:
            report.add(path, f"line {last} is not covered by the checkpoint, which ends before line {size}")
        elif len(leaves) != proof.index:
            report.add(path, f"it is about {proof.index} lines, but {len(leaves)} were given")
        elif subset_root(leaves, size, proof.hashes) != self._checkpoint.root:
            report.add(path, f"the {len(leaves)} lines do not lead to the signed root: one was changed, or is another")
        else:
            report.lines += len(leaves)

    def _leaves(self, segment: Segment) -> Iterator[tuple[int, bytes]]:
        """Numbers and hashes of the lines of a file, each of which is looked at."""
        found = (line for _, line in numbered(segment, 0))
        at = 0
        while lines := list(islice(found, _SLICE)):
            block = take_apart(b"\n".join((*lines, b"")))
            if block:
                yield from zip(block.seqs, map(leaf_hash, lines), strict=True)
            for place, line in enumerate(() if block else lines):
                head, why = problem_of(line, -1, None, ordered=False, strict=True)
                if head is None:
                    self.report.add(segment.path, why, at + place + 1)
                    return
                yield head.seq, leaf_hash(line)
            at += len(lines)
            self._progress(at, at)

    def _check_all(self) -> None:
        """Every line that the checkpoint covers, in order."""
        walk, checkpoint, report = Walk(self._exported, self._checkpoint.size, None), self._checkpoint, self.report
        tree = walk.run(self._progress)
        if walk.problem:
            report.problems.append(walk.problem)
            if "missing" in walk.problem.why:
                report.notes.append("lines of which others are missing need a proof: `poimen audit prove --lines FILE`")
        elif tree.root() != checkpoint.root:
            report.add(
                self._exported[0].path,
                f"the lines 0 to {checkpoint.size - 1} do not lead to the root that the checkpoint signs: a line was "
                "changed",
            )
        else:
            report.lines += checkpoint.size
            self._tree = tree
            if behind := walk.lines - checkpoint.size:
                report.notes.append(f"{behind} lines behind the checkpoint are not covered by it: nothing proves them")

    # ------------------------------------------------------------------------------------------ growth
    def _check_grown(self, path: Path, proofs: Sequence[Proof]) -> None:
        try:
            old = open_checkpoint(read_note(path), self._key, where=str(path))
        except AuditCorrupt as error:
            self.report.add_error(error)
            return
        report, new = self.report, self._checkpoint
        report.against.append(old.size)
        if old.size > new.size:
            report.add(path, f"it signs {old.size} lines, the newer checkpoint only {new.size}: the log was cut")
        elif old.size in {0, new.size}:
            if not consistent(old.size, new.size, [], old.root, new.root):
                report.add(path, f"its root over {old.size} lines is not that of the log: the log was changed")
        elif self._tree is not None:
            if self._root_at(self._tree, old.size) != old.root:
                report.add(path, f"the first {old.size} lines are not those that it signs: the log was changed")
        else:
            self._check_growth(path, old, [proof for proof in proofs if proof.index == old.size])

    def _check_growth(self, path: Path, old: Checkpoint, proofs: Sequence[Proof]) -> None:
        new = self._checkpoint
        if not proofs:
            if not self.report.problems:
                self.report.add(
                    path, "nothing given shows that the log grew from it; `poimen audit prove --from` makes a proof"
                )
        elif not any(
            one.extra == old.root and consistent(old.size, new.size, one.hashes, old.root, new.root) for one in proofs
        ):
            self.report.add(path, f"the proof does not show that the log begins with the {old.size} lines it signs")

    def _root_at(self, tree: Tree, size: int) -> bytes:
        start = size // WIDTH * WIDTH
        wanted: list[bytes] = []
        for segment in self._exported:
            if len(wanted) < size - start:
                wanted += [line for seq, line in numbered(segment, start) if start <= seq < size]
        return tree.root(size, leaf_hashes(wanted))


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        raise AuditUnavailable(f"{path}: {error.strerror or error}") from error
