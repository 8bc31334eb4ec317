"""A payload as the bytes of a file: a mark, a msgpack header, and raw buffers, all checksummed.

    mark [8] | length of header [4] | header | BLAKE2b of header [32] | buffers

Nothing that is read is trusted: whatever this version would not have written is refused with a reason, before any
payload is made of it. What is in the buffers is a codec's affair.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from hypic.cache.tiers.tier import Payload, Record, TierError
from hypic.segment import SCHEMA as KEY_SCHEMA

SCHEMA = 1
"""Version of the header and of what codecs write."""

MARK = b"hypic\r\n\x1a"  # ends as PNG's does, so that a transfer in text mode is seen

Buffer = npt.NDArray[np.uint8]

_PREFIX = struct.Struct("<8sI")
_HASH_BYTES = 32
MAX_HEADER_BYTES = 64 * 1024**2


class Codec(Protocol):
    """Turns payloads into a header and buffers, and back."""

    def encode(self, payload: Payload) -> tuple[bytes, Sequence[Buffer]]: ...

    def decode(self, header: bytes, buffers: Sequence[Buffer]) -> Payload:
        """May raise ValueError, KeyError, TypeError or HypicError for anything that `encode` does not write."""
        ...


@dataclass(frozen=True)
class Image:
    """A payload ready to be written."""

    head: bytes
    buffers: tuple[Buffer, ...]

    @property
    def nbytes(self) -> int:
        return len(self.head) + sum(buffer.nbytes for buffer in self.buffers)

    def parts(self) -> list[bytes]:
        return [self.head, *(buffer.tobytes() for buffer in self.buffers)]


def make_image(record: Record, payload: Payload, codec: Codec) -> Image:
    """The file of a payload."""
    inner, buffers = codec.encode(payload)
    header = msgpack.packb(
        {
            "schema": [SCHEMA, KEY_SCHEMA],
            "key": record.key,
            "kind": record.kind,
            "meta": record.meta,
            "payload": inner,
            "sizes": [buffer.nbytes for buffer in buffers],
            "checksum": _checksum(buffers),
        }
    )
    head = _PREFIX.pack(MARK, len(header)) + header + hashlib.blake2b(header, digest_size=_HASH_BYTES).digest()
    return Image(head, tuple(buffers))


def read_header(data: bytes) -> tuple[dict[str, Any], int]:
    """The header at the start of a file, and where the buffers begin. Raises TierError: "foreign" for what is no file
    of ours, "schema" for another version's, "truncated", or "damaged"."""
    if len(data) < _PREFIX.size or not data.startswith(MARK):
        raise TierError("foreign" if data[:8] != MARK[: len(data)] else "truncated", "no file of this cache")
    _, length = _PREFIX.unpack_from(data)
    end = _PREFIX.size + length
    if length > MAX_HEADER_BYTES:
        raise TierError("damaged", f"a header of {length} bytes")
    if len(data) < end + _HASH_BYTES:
        raise TierError("truncated", f"{len(data)} bytes, a header of {length} was promised")
    header = data[_PREFIX.size : end]
    if hashlib.blake2b(header, digest_size=_HASH_BYTES).digest() != data[end : end + _HASH_BYTES]:
        raise TierError("damaged", "the header's checksum is wrong")
    record: dict[str, Any] = msgpack.unpackb(header)
    if record.get("schema") != [SCHEMA, KEY_SCHEMA]:
        raise TierError("schema", f"schema {record.get('schema')}, this version reads {[SCHEMA, KEY_SCHEMA]}")
    return record, end + _HASH_BYTES


def header_bytes(start: bytes) -> int:
    """How many bytes of a file `read_header` needs, given at least its first 12."""
    if len(start) < _PREFIX.size:
        return _PREFIX.size
    return int(_PREFIX.size + min(_PREFIX.unpack_from(start)[1], MAX_HEADER_BYTES) + _HASH_BYTES)


def read_image(data: bytes, key: bytes, codec: Codec) -> Payload:
    """The payload of a file that is to be of that key. Raises TierError as `read_header` does."""
    header, begin = read_header(data)
    if header["key"] != key:
        raise TierError("foreign", "the file is of another key")
    if len(data) - begin != sum(header["sizes"]):
        raise TierError("truncated", f"{len(data) - begin} bytes of buffers, {sum(header['sizes'])} were written")
    flat = np.frombuffer(data, np.uint8, offset=begin)
    buffers = np.split(flat, np.cumsum(header["sizes"])[:-1]) if header["sizes"] else []
    if _checksum(buffers) != header["checksum"]:
        raise TierError("damaged", "the checksum of the buffers is wrong")
    try:
        return codec.decode(header["payload"], buffers)
    except Exception as error:  # a codec reads what a checksum vouches for: only another version can have written it
        raise TierError("schema", f"the payload cannot be read: {error!r}") from error


def _checksum(buffers: Sequence[Buffer]) -> bytes:
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for buffer in buffers:
        digest.update(np.ascontiguousarray(buffer).data)
    return digest.digest()
