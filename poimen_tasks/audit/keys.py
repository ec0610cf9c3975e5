"""The key that signs the checkpoints: Ed25519, made when a log begins, in the forms of Go's note package.

The public key is one line, `<origin>+<hash>+<base64 of 0x01 and the key>`, as C2SP signed-note calls a verifier key
(https://c2sp.org/signed-note); the private one is the same behind `PRIVATE+KEY+`
(https://pkg.go.dev/golang.org/x/mod/sumdb/note). The package `cryptography` is loaded only here, when it is needed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poimen_tasks.audit.disk import Disk
from poimen_tasks.errors import AuditCorrupt, AuditUnavailable, InvalidArgument

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Signer", "Verifier", "check_origin", "key_at", "public_key_at"]

_ED25519 = b"\x01"
_PRIVATE = "PRIVATE+KEY+"
_ORIGIN = re.compile(r"[!-*,-~]{1,128}").fullmatch


@dataclass(frozen=True, slots=True)
class Verifier:
    """A public key, and the name under which it signs.

    Attributes:
        origin: the name of the log.
        public: the key, 32 bytes.
    """

    origin: str
    public: bytes

    @property
    def key_id(self) -> bytes:
        """Four bytes that tell it from other keys of the name."""
        return hashlib.sha256(self.origin.encode() + b"\n" + _ED25519 + self.public).digest()[:4]

    def verifies(self, signature: bytes, text: bytes) -> bool:
        """Whether this key made the signature over the text."""
        from cryptography.exceptions import InvalidSignature

        try:
            _ed25519().Ed25519PublicKey.from_public_bytes(self.public).verify(signature, text)
        except (InvalidSignature, ValueError):
            return False
        return True

    def __str__(self) -> str:
        """The line that is handed out."""
        return f"{self.origin}+{self.key_id.hex()}+{base64.b64encode(_ED25519 + self.public).decode()}"

    @classmethod
    def parse(cls, text: str, *, where: str = "public key") -> Verifier:
        """A public key from its line.

        Raises:
            InvalidArgument: it is none, or its parts do not fit each other.
        """
        origin, material = _parts(text, where)
        verifier = cls(origin, material)
        if str(verifier) != text:
            raise InvalidArgument(f"{where}: the parts of the key do not fit each other; it is damaged")
        return verifier


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key.

    Attributes:
        verifier: its public half.
    """

    verifier: Verifier
    _private: Ed25519PrivateKey = field(repr=False)

    def sign(self, text: bytes) -> bytes:
        """The signature over a text, 64 bytes."""
        return self._private.sign(text)

    @classmethod
    def of(cls, origin: str, seed: bytes) -> Signer:
        """From the 32 secret bytes."""
        private = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        return cls(Verifier(origin, private.public_key().public_bytes_raw()), private)

    def secret_line(self) -> str:
        """What the key file holds."""
        secret = base64.b64encode(_ED25519 + self._private.private_bytes_raw()).decode()
        return f"{_PRIVATE}{self.verifier.origin}+{self.verifier.key_id.hex()}+{secret}"

    @classmethod
    def parse(cls, text: str, *, where: str) -> Signer:
        """A private key from its line.

        Raises:
            InvalidArgument: it is none, or its parts do not fit each other.
        """
        signer = cls.of(*_parts(text.removeprefix(_PRIVATE), where))
        if signer.secret_line() != text:
            raise InvalidArgument(f"{where}: the parts of the key do not fit each other; it is damaged")
        return signer


def check_origin(origin: str) -> str:
    """The name of a log: 1 to 128 visible ASCII characters without plus.

    Raises:
        InvalidArgument: it is none.
    """
    if not _ORIGIN(origin):
        raise InvalidArgument(f"origin: expected 1-128 visible ASCII characters without +, got {origin!r:.80}")
    return origin


def key_at(directory: Path, origin: str, *, disk: Disk) -> Signer:
    """The key of the log in a directory; made, with its public half, when the log begins.

    Raises:
        AuditCorrupt: the files are damaged, do not fit each other, or one is gone.
        AuditUnavailable: the key cannot be read, or others may read it.
        InvalidArgument: it is the key of a log with another origin.
    """
    path, public = directory / "key", directory / "key.pub"
    if not path.exists():
        if public.exists() or (directory / "checkpoint").exists():
            raise AuditCorrupt(f"{path}: the key of the log is gone; it cannot go on with another one")
        disk.replace(path, f"{Signer.of(check_origin(origin), _random()).secret_line()}\n".encode(), mode=0o600)
    signer = _private_key_at(path)
    if signer.verifier.origin != origin:
        raise InvalidArgument(f"origin: the log in {directory} is of {signer.verifier.origin!r}, not of {origin!r}")
    line = f"{signer.verifier}\n".encode()
    if not public.exists() and not (directory / "checkpoint").exists():
        disk.replace(public, line)
    if public_key_at(public) != signer.verifier:
        raise AuditCorrupt(f"{public}: it is not the public half of {path}")
    return signer


def public_key_at(path: Path) -> Verifier:
    """The public key in a file.

    Raises:
        AuditUnavailable: it cannot be read.
        AuditCorrupt: it holds no public key.
    """
    try:
        return Verifier.parse(_line(path), where=str(path))
    except InvalidArgument as error:
        raise AuditCorrupt(str(error)) from None


def _private_key_at(path: Path) -> Signer:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise AuditUnavailable(f"{path}: others may read the key (mode {mode:04o}); run `chmod 600 {path}`")
    try:
        return Signer.parse(_line(path), where=str(path))
    except InvalidArgument as error:
        raise AuditCorrupt(str(error)) from None


def private_key_problem(directory: Path) -> str:
    """What is wrong with the private key beside the log, as far as one may read it; empty: nothing."""
    path = directory / "key"
    try:
        signer = Signer.parse(_line(path), where=str(path))
    except AuditUnavailable:
        return ""
    except InvalidArgument as error:
        return str(error)
    if signer.verifier == public_key_at(directory / "key.pub"):
        return ""
    return f"{path}: key.pub is not its public half"


def _line(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AuditUnavailable(f"{path}: {error.strerror or error}") from error
    if not data.endswith(b"\n") or not data.isascii():
        raise InvalidArgument(f"{path}: expected a key on a line of ASCII text")
    return data[:-1].decode()


def _parts(text: str, where: str) -> tuple[str, bytes]:
    origin, _, rest = text.partition("+")
    encoded = rest.partition("+")[2]
    try:
        material = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        material = b""
    if not _ORIGIN(origin) or material[:1] != _ED25519 or len(material) != 33:
        # What was read may be a private key, or any other secret: no text for a terminal or the log of a build.
        shown = "a private one" if _PRIVATE in text else f"{len(text)} characters of something else"
        raise InvalidArgument(f"{where}: expected a key like log.example+1234abcd+AbCd…=, got {shown}")
    return origin, material[1:]


def _random() -> bytes:
    import secrets

    return secrets.token_bytes(32)


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise AuditUnavailable(
            "the audit log is signed, which needs the package cryptography: pip install 'poimen-tasks[audit]'"
        ) from error
    return ed25519
