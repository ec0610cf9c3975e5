"""Checkpoints: the size and root of the log at a moment, signed; C2SP tlog-checkpoint on C2SP signed-note.

See https://c2sp.org/tlog-checkpoint and https://c2sp.org/signed-note. Three lines of text (origin, size, root in
base64), a blank line, and lines of signatures; those of other keys, such as witnesses', are passed over.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path

from poimen_tasks.audit.keys import Signer, Verifier
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable

__all__ = ["Checkpoint", "open_checkpoint", "read_note", "read_size", "sign_checkpoint"]

_MOST_BYTES = 64 * 1024
_BODY = re.compile(r"([!-~]+)\n(0|[1-9]\d{0,18})\n([A-Za-z0-9+/=]{44})\n")
_SIGNATURE = re.compile(r"— (\S+) ([A-Za-z0-9+/=]+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tree at a moment.

    Attributes:
        origin: the name of the log.
        size: how many lines it had.
        root: the hash over them, 32 bytes.
    """

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """What is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> bytes:
    """The note."""
    signature = signer.verifier.key_id + signer.sign(checkpoint.text.encode())
    line = f"— {signer.verifier.origin} {base64.b64encode(signature).decode()}\n"
    return f"{checkpoint.text}\n{line}".encode()


def open_checkpoint(note: bytes, verifier: Verifier, *, where: str) -> Checkpoint:
    """The checkpoint in a note, when this key signed it.

    Args:
        note: the file's bytes.
        verifier: the log's public key.
        where: names the note in errors.

    Raises:
        AuditCorrupt: it is no checkpoint, of another log, or not signed by the key.
    """
    checkpoint, signatures = _split(note, where)
    if checkpoint.origin != verifier.origin:
        raise AuditCorrupt(f"{where}: it is of the log {checkpoint.origin!r}, the key is of {verifier.origin!r}")
    ours = [signature for name, signature in signatures if _is_of(name, signature, verifier)]
    if not ours:
        raise AuditCorrupt(f"{where}: the key {verifier} did not sign it")
    if not all(verifier.verifies(signature[4:], checkpoint.text.encode()) for signature in ours):
        raise AuditCorrupt(f"{where}: the signature is wrong: the text was changed, or another key made it")
    return checkpoint


def read_size(note: bytes, *, where: str) -> int:
    """The size that a note names, its signature unseen.

    Raises:
        AuditCorrupt: it is no checkpoint.
    """
    return _split(note, where)[0].size


def read_note(path: Path) -> bytes:
    """The bytes of a note.

    Raises:
        AuditUnavailable: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise AuditUnavailable(f"{path}: {error.strerror or error}") from error


def _split(note: bytes, where: str) -> tuple[Checkpoint, list[tuple[str, bytes]]]:
    try:
        text = note.decode()
    except UnicodeDecodeError:
        text = ""
    body, blank, lines = text.rpartition("\n\n")
    match = _BODY.match(f"{body}\n")
    if len(note) > _MOST_BYTES or not blank or not match or not lines.endswith("\n"):
        raise AuditCorrupt(f"{where}: it is no checkpoint (origin, size, root, a blank line, signatures)")
    if match.end() != len(body) + 1:
        raise AuditCorrupt(f"{where}: it has more lines than origin, size and root")
    checkpoint = Checkpoint(match[1], int(match[2]), _base64(match[3]) or b"")
    if checkpoint.text != match[0]:
        raise AuditCorrupt(f"{where}: its root is not the base64 of a hash")
    return checkpoint, [_signature(line, where) for line in lines[:-1].split("\n")]


def _signature(line: str, where: str) -> tuple[str, bytes]:
    match = _SIGNATURE.fullmatch(line)
    data = _base64(match[2]) if match else None
    if match is None or data is None or len(data) <= 4:
        raise AuditCorrupt(f"{where}: {line!r:.80} is no line of a signature")
    return match[1], data


def _base64(text: str) -> bytes | None:
    """Decoded, when it is written the one right way."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == text else None


def _is_of(name: str, signature: bytes, verifier: Verifier) -> bool:
    return name == verifier.origin and signature[:4] == verifier.key_id
