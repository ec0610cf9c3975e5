"""The hash tree of the audit log, its tiles and its signed checkpoints, against the vectors of their specifications."""

from __future__ import annotations

import base64
import hashlib
import random

import pytest

from poimen_tasks.audit.disk import Disk
from poimen_tasks.audit.keys import Signer, Verifier, check_origin, key_at, public_key_at
from poimen_tasks.audit.merkle import (
    EMPTY,
    consistency_proof,
    consistent,
    fold,
    included,
    inclusion_proof,
    leaf_hash,
    leaf_hashes,
    node_hash,
    root_of,
    subset_proof,
    subset_root,
)  # fmt: skip
from poimen_tasks.audit.note import Checkpoint, open_checkpoint, sign_checkpoint
from poimen_tasks.audit.tiles import WIDTH, Edge, Tile, TileReader, parse_tile
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable, InvalidArgument

# The eight leaves and their roots that every implementation of RFC 6962 is tested with.
LEAVES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
# index, size, hashes
INCLUSION = [
    (0, 1, []),
    (0, 8, ["96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"]),
    (5, 8, ["bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"]),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (1, 5, ["6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"]),
]  # fmt: skip
# old size, size, hashes
CONSISTENCY = [
    (1, 1, []),
    (1, 8, ["96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"]),
    (6, 8, ["0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"]),
    (2, 5, ["5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"]),
]  # fmt: skip
# The example of https://pkg.go.dev/golang.org/x/mod/sumdb/note.
NEUMANN_PRIVATE = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANN_TEXT = b"If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
NEUMANN_SIGNATURE = "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM="


def hexes(hashes):
    """Hashes as text."""
    return [one.hex() for one in hashes]


def leaf(number):
    """A leaf of no meaning."""
    return leaf_hash(b"line %d" % number)


def tree_over(leaves):
    """Subtrees of a tree over these hashes, the slow way: the definition of RFC 6962."""

    def subtree(low, high):
        if high - low < 2:
            return leaves[low] if high > low else EMPTY
        middle = low + (1 << (high - low - 1).bit_length() - 1)
        return node_hash(subtree(low, middle), subtree(middle, high))

    return subtree


# ------------------------------------------------------------------------------------------- RFC 6962
@pytest.mark.parametrize("size", range(9))
def test_the_roots_of_the_reference_tree(size):
    """The reference leaves have the reference roots, joined at once, from an edge, and by definition."""
    hashes = [leaf_hash(one) for one in LEAVES[:size]]
    edge = Edge()
    edge.extend(b"".join(hashes))
    assert root_of(b"".join(hashes)).hex() == ROOTS[size]
    assert edge.root().hex() == ROOTS[size]
    assert tree_over(hashes)(0, size).hex() == ROOTS[size]
    assert leaf_hashes(LEAVES[:size]) == b"".join(hashes)


@pytest.mark.parametrize(("index", "size", "proof"), INCLUSION)
def test_the_inclusion_proofs_of_the_reference_tree(index, size, proof):
    """Proofs that a leaf is in the tree are those of the reference, and are accepted."""
    hashes = [leaf_hash(one) for one in LEAVES[:size]]
    made = inclusion_proof(index, size, tree_over(hashes))
    assert hexes(made) == proof
    assert included(hashes[index], index, size, made, bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize(("old", "size", "proof"), CONSISTENCY)
def test_the_consistency_proofs_of_the_reference_tree(old, size, proof):
    """Proofs that a tree begins with an older one are those of the reference, and are accepted."""
    made = consistency_proof(old, size, tree_over([leaf_hash(one) for one in LEAVES[:size]]))
    assert hexes(made) == proof
    assert consistent(old, size, made, bytes.fromhex(ROOTS[old]), bytes.fromhex(ROOTS[size]))


@pytest.mark.parametrize("size", range(1, 20))
def test_every_inclusion_proof_of_small_trees(size):
    """Each leaf of each tree has a proof; it proves no other place, no other leaf, and no other length."""
    hashes = [leaf(at) for at in range(size)]
    subtree, root = tree_over(hashes), tree_over(hashes)(0, size)
    for index in range(size):
        proof = inclusion_proof(index, size, subtree)
        assert included(hashes[index], index, size, proof, root)
        assert [at for at in range(-1, size + 1) if included(hashes[index], at, size, proof, root)] == [index]
        assert not included(leaf(-1), index, size, proof, root)
        assert not included(hashes[index], index, size, [*proof, EMPTY], root)
        assert not proof or not included(hashes[index], index, size, proof[:-1], root)
        for at in range(len(proof)):
            wrong = [*proof[:at], node_hash(proof[at], EMPTY), *proof[at + 1 :]]
            assert not included(hashes[index], index, size, wrong, root)


@pytest.mark.parametrize("size", range(1, 20))
def test_every_consistency_proof_of_small_trees(size):
    """Each tree is proved to begin with each smaller one; a proof with anything changed is refused."""
    hashes = [leaf(at) for at in range(size)]
    subtree = tree_over(hashes)
    root = subtree(0, size)
    for old in range(1, size + 1):
        proof, old_root = consistency_proof(old, size, subtree), subtree(0, old)
        assert consistent(old, size, proof, old_root, root)
        assert not consistent(old, size, proof, EMPTY, root)
        assert not consistent(old, size, proof, old_root, EMPTY)
        assert not consistent(old, size, [*proof, EMPTY], old_root, root)
        assert not proof or not consistent(old, size, proof[:-1], old_root, root)
        for at in range(len(proof)):
            wrong = [*proof[:at], node_hash(proof[at], EMPTY), *proof[at + 1 :]]
            assert not consistent(old, size, wrong, old_root, root)
    assert consistent(0, size, [], EMPTY, root)
    assert not consistent(0, size, [], root, root)
    assert not consistent(size + 1, size, [], root, root)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 33])
def test_proofs_of_sets_of_lines(size):
    """A set of leaves and the proof about it give the root; another leaf, another place or other hashes do not."""
    chance = random.Random(size)
    hashes = [leaf(at) for at in range(size)]
    subtree, root = tree_over(hashes), tree_over(hashes)(0, size)
    for _ in range(30):
        some = sorted(chance.sample(range(size), chance.randint(1, size)))
        leaves = [(at, hashes[at]) for at in some]
        proof = subset_proof(some, size, subtree)
        assert subset_root(leaves, size, proof) == root
        assert subset_root(leaves, size, [*proof, EMPTY]) is None
        assert subset_root(leaves[1:], size, proof) != root
        assert subset_root([(some[0], EMPTY), *leaves[1:]], size, proof) != root
        assert not proof or subset_root(leaves, size, proof[:-1]) is None
    assert subset_proof(range(size), size, subtree) == []


# ------------------------------------------------------------------------------------------- tiles
@pytest.mark.parametrize(
    ("tile", "name"),
    [
        (Tile(0, 0), "tile/0/000"),
        (Tile(0, 5, 44), "tile/0/005.p/44"),
        (Tile(1, 999), "tile/1/999"),
        (Tile(2, 1000), "tile/2/x001/000"),
        (Tile(0, 1_234_067), "tile/0/x001/x234/067"),
        (Tile(3, 1_234_067, 8), "tile/3/x001/x234/067.p/8"),
    ],
)
def test_tiles_are_named_as_their_specification_says(tile, name):
    """Tile paths are those of C2SP tlog-tiles, whose example is number 1234067, and are read back."""
    assert tile.name == name
    assert parse_tile(name.removeprefix("tile/")) == tile


@pytest.mark.parametrize(
    "name", ["0/0", "0/0000", "0/x000/001", "0/001.p/256", "0/001.p/0", "a/000", "0/000.tmp", "0/x1/000", "", "000"]
)
def test_other_names_are_no_tiles(name):
    """What the specification does not call a tile is none."""
    assert parse_tile(name) is None


@pytest.mark.parametrize("size", [1, 255, 256, 257, 600, 65_536, 66_000])
def test_any_hash_of_the_tree_comes_from_the_tiles(tmp_path, size):
    """Subtrees read from tiles are those that the leaves give; so are the edges of smaller trees, and proofs."""
    hashes = b"".join(hashlib.sha256(b"%d" % at).digest() for at in range(size))
    edge = Edge()
    for at in range(0, size, 1_000):
        for tile, data in edge.extend(hashes[at * 32 : (at + 1_000) * 32]):
            Disk().put(tmp_path / tile.name, data)
    for tile, data in edge.partial():
        Disk().put(tmp_path / tile.name, data)
    reader, root = TileReader(tmp_path, size), root_of(hashes)
    assert edge.root() == reader.subtree(0, size) == root
    chance = random.Random(size)
    for index in {0, size - 1, *(chance.randrange(size) for _ in range(20))}:
        proof = inclusion_proof(index, size, reader.subtree)
        assert included(hashes[index * 32 :][:32], index, size, proof, root)
    for old in {1, size, *(chance.randint(1, size) for _ in range(10))}:
        proof = consistency_proof(old, size, reader.subtree)
        assert consistent(old, size, proof, root_of(hashes[: old * 32]), root)
    base = size // WIDTH * WIDTH
    assert fold([*reader.edge(base)._levels]) == (root_of(hashes[: base * 32]) if base else EMPTY)


def test_a_missing_tile_is_told(tmp_path):
    """A hash that no tile has is an error that names the tile, as is one of a wrong length."""
    with pytest.raises(AuditCorrupt, match=r"tile/0/000\.p/3: the tile is missing"):
        TileReader(tmp_path, 3).subtree(0, 2)
    Disk().put(tmp_path / "tile/0/000.p/3", b"x" * 64)
    with pytest.raises(AuditCorrupt, match="64 bytes where a tile of 3 hashes has 96"):
        TileReader(tmp_path, 3).subtree(0, 2)


# ------------------------------------------------------------------------------------------- keys and notes
def test_keys_and_signatures_are_those_of_signed_notes():
    """The example key of Go's note package is read and written back, and makes the signature of its example."""
    signer = Signer.parse(NEUMANN_PRIVATE, where="key")
    assert str(signer.verifier) == NEUMANN
    assert signer.secret_line() == NEUMANN_PRIVATE
    assert Verifier.parse(NEUMANN) == signer.verifier
    made = signer.verifier.key_id + signer.sign(NEUMANN_TEXT)
    assert base64.b64encode(made).decode() == NEUMANN_SIGNATURE
    assert signer.verifier.verifies(made[4:], NEUMANN_TEXT)
    assert not signer.verifier.verifies(made[4:], NEUMANN_TEXT + b"\n")
    assert "AYEKFALV" not in repr(signer)


@pytest.mark.parametrize(
    "text",
    ["", "PeterNeumann", NEUMANN[:-1], NEUMANN.replace("c74f20a3", "c74f20a4"), NEUMANN.replace("Peter", "Karl"),
     f"{NEUMANN} ", "a b+00000000+AQ==", NEUMANN.replace("+ARpc", "+BRpc")],
)  # fmt: skip
def test_damaged_keys_are_refused(text):
    """A public key whose parts do not fit each other is one clear error."""
    with pytest.raises(InvalidArgument, match="key"):
        Verifier.parse(text)


@pytest.mark.parametrize("origin", ["", "a b", "a+b", "ä", "a\n", "x" * 129])
def test_names_of_logs(origin):
    """A log's name is visible ASCII without plus."""
    with pytest.raises(InvalidArgument, match="origin"):
        check_origin(origin)
    assert check_origin("poimen/shop.example") == "poimen/shop.example"


def test_a_checkpoint_is_read_with_its_key_alone():
    """A signed checkpoint opens with the key that signed it, also beside signatures of others, and with no other."""
    signer, other = Signer.of("log.example", b"1" * 32), Signer.of("log.example", b"2" * 32)
    made = Checkpoint("log.example", 42, b"r" * 32)
    note = sign_checkpoint(made, signer)
    assert note.decode().split("\n")[:4] == ["log.example", "42", base64.b64encode(b"r" * 32).decode(), ""]
    assert open_checkpoint(note, signer.verifier, where="it") == made
    witness = "— witness.example AAAAAGFiYw==\n".encode()
    assert open_checkpoint(note + witness, signer.verifier, where="it") == made
    with pytest.raises(AuditCorrupt, match=r"it: the key log\.example\+.* did not sign it"):
        open_checkpoint(note, other.verifier, where="it")
    with pytest.raises(AuditCorrupt, match=r"of the log 'log\.example', the key is of 'other'"):
        open_checkpoint(note, Signer.of("other", b"1" * 32).verifier, where="it")


def test_every_bit_of_a_checkpoint_counts():
    """A checkpoint in which any one bit was flipped does not open."""
    signer = Signer.of("log.example", b"1" * 32)
    note = sign_checkpoint(Checkpoint("log.example", 42, b"r" * 32), signer)
    for bit in range(len(note) * 8):
        wrong = bytearray(note)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AuditCorrupt):
            open_checkpoint(bytes(wrong), signer.verifier, where="it")


def test_the_key_of_a_log(tmp_path):
    """It is made once, for its owner alone, with its public half; a key that others may read is refused."""
    made = key_at(tmp_path, "log.example", disk=Disk())
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert key_at(tmp_path, "log.example", disk=Disk()).verifier == made.verifier
    assert public_key_at(tmp_path / "key.pub") == made.verifier
    assert (tmp_path / "key.pub").read_text() == f"{made.verifier}\n"
    with pytest.raises(InvalidArgument, match=r"is of 'log\.example', not of 'other'"):
        key_at(tmp_path, "other", disk=Disk())
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(AuditUnavailable, match=r"others may read the key \(mode 0640\); run `chmod 600"):
        key_at(tmp_path, "log.example", disk=Disk())
    (tmp_path / "key").unlink()
    with pytest.raises(AuditCorrupt, match="the key of the log is gone"):
        key_at(tmp_path, "log.example", disk=Disk())
