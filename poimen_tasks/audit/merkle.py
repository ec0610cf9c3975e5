"""The hash tree over the lines of the log, and proofs about it: RFC 6962, section 2.1 (SHA-256).

Facts can be proved with a few hashes: that a line, or a set of lines, is part of a tree (inclusion), and that a larger
tree begins with a smaller one (consistency). The checks follow RFC 9162, sections 2.1.3.2 and
2.1.4.2, whose proofs are the same.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "EMPTY",
    "Subtree",
    "consistency_proof",
    "consistent",
    "fold",
    "included",
    "inclusion_proof",
    "leaf_hash",
    "leaf_hashes",
    "node_hash",
    "root_of",
    "subset_proof",
    "subset_root",
]

#: What proofs are made from: the root over the leaves [start, end), for ranges that are subtrees of the tree.
Subtree = Callable[[int, int], bytes]

_SIZE = 32
#: The root of a tree without leaves.
EMPTY = hashlib.sha256(b"").digest()
# A copy of a hash that has begun costs less than a new one.
_LEAF = hashlib.sha256(b"\0")
_NODE = hashlib.sha256(b"\1")


def leaf_hash(line: bytes) -> bytes:
    """The hash of one line, without its newline."""
    made = _LEAF.copy()
    made.update(line)
    return made.digest()


def leaf_hashes(lines: Sequence[bytes]) -> bytes:
    """The hashes of many lines, one behind the other."""
    begin, hashes = _LEAF.copy, []
    for line in lines:
        made = begin()
        made.update(line)
        hashes.append(made.digest())
    return b"".join(hashes)


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash over two subtrees."""
    made = _NODE.copy()
    made.update(left + right)
    return made.digest()


def root_of(hashes: bytes) -> bytes:
    """The root over hashes that stand one behind the other: of leaves, or of full subtrees of one size.

    The last one may be of a smaller subtree. Pairs are joined level by level, and the odd one goes up as it is, which
    gives the tree of RFC 6962.
    """
    if not hashes:
        return EMPTY
    begin = _NODE.copy
    while len(hashes) > _SIZE:
        joined = []
        even = len(hashes) - len(hashes) % (2 * _SIZE)
        for at in range(0, even, 2 * _SIZE):
            made = begin()
            made.update(hashes[at : at + 2 * _SIZE])
            joined.append(made.digest())
        joined.append(hashes[even:])
        hashes = b"".join(joined)
    return hashes


def fold(levels: Sequence[bytes]) -> bytes:
    """The root of a tree whose right edge is given: below each other the hashes of full subtrees not yet joined.

    Args:
        levels: lowest first; each at most one subtree of the next level.
    """
    rest = b""
    for hashes in levels:
        if hashes or rest:
            rest = root_of(hashes + rest)
    return rest or EMPTY


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def inclusion_proof(index: int, size: int, subtree: Subtree) -> list[bytes]:
    """The hashes that lead from a leaf to the root of the tree with `size` leaves; its neighbour first."""
    proof: list[bytes] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            proof.append(subtree(middle, high))
            high = middle
        else:
            proof.append(subtree(low, middle))
            low = middle
    return proof[::-1]


def included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof shows that a leaf with this hash is number `index` of the tree with this size and root."""
    if not 0 <= index < size:
        return False
    place, last, found = index, size - 1, leaf
    for step in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = node_hash(step, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, step)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def consistency_proof(old: int, size: int, subtree: Subtree) -> list[bytes]:
    """The hashes that show that the tree with `size` leaves begins with the one of `old` leaves, 0 < old <= size."""
    proof: list[bytes] = []
    low, high, whole = 0, size, True
    while old != high:
        middle = low + _split(high - low)
        if old <= middle:
            proof.append(subtree(middle, high))
            high = middle
        else:
            proof.append(subtree(low, middle))
            low, whole = middle, False
    if not whole:
        proof.append(subtree(low, high))
    return proof[::-1]


def consistent(old: int, size: int, proof: Sequence[bytes], old_root: bytes, root: bytes) -> bool:
    """Whether the proof shows that the tree with this size and root begins with the one of `old` leaves."""
    if not 0 <= old <= size:
        return False
    if old in {0, size}:
        return not proof and old_root == (root if old == size else EMPTY)
    path = [*proof] if old & (old - 1) else [old_root, *proof]
    return bool(path) and _leads_to(old - 1, size - 1, path) == (old_root, root)


def _leads_to(place: int, last: int, path: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """The old and the new root that a path of hashes gives; None: it has the wrong length."""
    while place & 1:
        place, last = place >> 1, last >> 1
    before = after = path[0]
    for step in path[1:]:
        if last == 0:
            return None
        if place & 1 or place == last:
            before, after = node_hash(step, before), node_hash(step, after)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            after = node_hash(after, step)
        place, last = place >> 1, last >> 1
    return (before, after) if last == 0 else None


def subset_proof(indices: Sequence[int], size: int, subtree: Subtree) -> list[bytes]:
    """The hashes of the largest subtrees without any of these leaves, from left to right.

    Args:
        indices: rising numbers of leaves below `size`, each once.
        size: leaves of the tree.
        subtree: gives their hashes.
    """
    return [subtree(low, high) for low, high in _without(indices, 0, size)]


def _without(indices: Sequence[int], low: int, high: int) -> Iterator[tuple[int, int]]:
    """The largest subtrees of [low, high) that have none of the leaves."""
    if not indices:
        yield low, high
    elif high - low > 1:
        middle = low + _split(high - low)
        cut = bisect_left(indices, middle)
        yield from _without(indices[:cut], low, middle)
        yield from _without(indices[cut:], middle, high)


def subset_root(leaves: Sequence[tuple[int, bytes]], size: int, proof: Sequence[bytes]) -> bytes | None:
    """The root of the tree with `size` leaves that these leaves and the hashes of `subset_proof` give.

    Args:
        leaves: number and hash; the numbers rise, each once, and are below `size`.
        size: leaves of the tree.
        proof: the other hashes.

    Returns:
        None: there are too few hashes, or too many.
    """
    rest = iter(proof)
    root = _rebuilt(leaves, 0, size, rest)
    return root if root and next(rest, None) is None else None


def _rebuilt(leaves: Sequence[tuple[int, bytes]], low: int, high: int, others: Iterator[bytes]) -> bytes:
    """The root over [low, high) with these leaves below it; nothing where a hash is missing."""
    if not leaves:
        return next(others, b"")
    if high - low == 1:
        return leaves[0][1]
    middle = low + _split(high - low)
    cut = bisect_left(leaves, (middle, b""))
    left = _rebuilt(leaves[:cut], low, middle, others)
    right = _rebuilt(leaves[cut:], middle, high, others)
    return node_hash(left, right) if left and right else b""
