"""From entries of the stream to events: what the sealer writes, and what a query without a log on disk reads.

Deterministic: the same entry gives the same bytes, so an entry that is expanded again after a crash is the same lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Expanded", "encode_event", "expand_entry", "expand_lines"]


class Expanded(NamedTuple):
    """An entry made ready for the disk.

    Attributes:
        events: the bytes of each line's event, in order.
        blobs: SHA-256 (hex) to the bytes of fields too large for a line: to be in the content store before the lines.
    """

    events: list[bytes]
    blobs: dict[str, bytes]


def expand_entry(epoch: str, stream_id: str, fields: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    """The events of one entry of the stream, in order, every field in full.

    An entry that cannot be read gives one `audit.unreadable` event with its bytes in base64, never an exception.

    Args:
        epoch: the stream's random epoch.
        stream_id: the entry's id.
        fields: its fields as the server returned them.
    """
    raise NotImplementedError


def expand_lines(epoch: str, stream_id: str, fields: Mapping[bytes, bytes], *, inline_bytes: int) -> Expanded:
    """What the sealer writes for one entry: `expand_entry`, encoded, fields over `inline_bytes` kept by digest.

    In the event such a field is empty, and `content` says where it is: `{"reasoning": {"sha256": ..., "bytes": ...}}`.
    """
    raise NotImplementedError


def encode_event(event: Mapping[str, Any]) -> bytes:
    """Compact strict JSON in ASCII."""
    return json.dumps(event, allow_nan=False, separators=(",", ":")).encode("ascii")
