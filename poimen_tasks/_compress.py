"""Compressed values: a msgpack extension of type 6 whose bytes are one zstd frame around an encoded value.

The frame's format is [RFC 8878](https://www.rfc-editor.org/rfc/rfc8878).
"""

from __future__ import annotations

import threading

import msgpack
import zstandard

from poimen_tasks._refusals import MAX_BYTES
from poimen_tasks.errors import SerializationError

__all__ = ["COMPRESSED", "compress", "unwrap"]

COMPRESSED = 6
_LEAST = 1024
_GAIN = 0.9


class _Tools(threading.local):
    """A compressor and a decompressor of each thread: they are not to be shared."""

    def __init__(self) -> None:
        self.press = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True)
        self.open = zstandard.ZstdDecompressor()


_tools = _Tools()


def compress(blob: bytes) -> bytes:
    """An encoded value of more than 1 KiB in less bytes, where that saves a tenth; else the same bytes."""
    if len(blob) <= _LEAST:
        return blob
    frame = _tools.press.compress(blob)
    if len(frame) > _GAIN * len(blob):
        return blob
    packed: bytes = msgpack.packb(msgpack.ExtType(COMPRESSED, frame))
    return packed


def unwrap(frame: bytes) -> bytes:
    """The encoded value in a frame.

    Raises:
        SerializationError: not a frame of ours, damaged, or larger inside than any value may be.
    """
    try:
        size = zstandard.frame_content_size(frame)
        if not 0 <= size <= MAX_BYTES:
            raise SerializationError(
                f"encoded value: compressed, expected at most {MAX_BYTES:,} bytes inside, got {size:,}"
            )
        return _tools.open.decompress(frame, max_output_size=size)
    except zstandard.ZstdError as error:
        raise SerializationError(
            f"encoded value: compressed, {len(frame)} bytes that are no frame of ours: {error}"
        ) from error
