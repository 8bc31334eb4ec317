"""How a cached segment travels between processes: a msgpack header and raw buffers, in host memory.

Requests, plans and outputs are frozen dataclasses already and travel as they are; a `SegmentEntry` holds tensors and
does not. Nothing that arrives is trusted: sizes, names, types and the schema are checked before a tensor is made.
Which process sends what to whom is left to hypic.workers.
"""

import math
from dataclasses import dataclass

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hypic.cache.entry import SegmentEntry
from hypic.errors import HypicError
from hypic.linear.operators import Operators
from hypic.segment import SCHEMA as KEY_SCHEMA

SCHEMA = 2
"""Version of the header and of the order of the buffers."""

Buffer = npt.NDArray[np.uint8]

_OTHERS = ("conv_tails", "keys", "values")
"""Names of the tensors that end an entry; before them come those of its operators, which depend on the formats."""

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "uint8": torch.uint8,
}


class ProtocolError(HypicError):
    """What arrived is not what this version sends: damaged, cut short, or from another version."""

    code = "protocol_error"


@dataclass(frozen=True)
class EntryHeader:
    """What the buffers of an entry are. tensors: name, dtype and shape of each, in the order of the buffers."""

    key: bytes
    tokens: int
    seam_tokens: int
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]

    def pack(self) -> bytes:
        record = {
            "schema": [SCHEMA, KEY_SCHEMA],
            "key": self.key,
            "tokens": self.tokens,
            "seam_tokens": self.seam_tokens,
            "tensors": self.tensors,
        }
        return bytes(msgpack.packb(record))

    @classmethod
    def unpack(cls, data: bytes) -> "EntryHeader":
        """Raises ProtocolError for anything that `pack` of this version does not write."""
        try:
            record = msgpack.unpackb(data)
            if record["schema"] != [SCHEMA, KEY_SCHEMA]:
                raise ProtocolError(
                    f"an entry of schema {record['schema']} arrived, this process reads {[SCHEMA, KEY_SCHEMA]}: run "
                    "the same version of hypic in all processes"
                )
            tensors = tuple((name, dtype, tuple(shape)) for name, dtype, shape in record["tensors"])
            header = cls(record["key"], record["tokens"], record["seam_tokens"], tensors)
        except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
            raise ProtocolError(f"the header of an entry cannot be read: {error!r}") from error
        header._check()
        return header

    @property
    def buffer_bytes(self) -> tuple[int, ...]:
        """Length of each buffer: the tensors, then the int32 token ids."""
        sizes = (math.prod(shape) * _DTYPES[dtype].itemsize for _, dtype, shape in self.tensors)
        return (*sizes, self.tokens * 4)

    def _check(self) -> None:
        numbers = [self.tokens, self.seam_tokens, *(n for _, _, shape in self.tensors for n in shape)]
        faults = {
            "its key is not 32 bytes": not isinstance(self.key, bytes) or len(self.key) != 32,
            f"its tensors do not end with {_OTHERS}": tuple(name for name, _, _ in self.tensors)[-3:] != _OTHERS,
            "two tensors have one name": len({name for name, _, _ in self.tensors}) != len(self.tensors),
            f"a dtype is none of {sorted(_DTYPES)}": any(dtype not in _DTYPES for _, dtype, _ in self.tensors),
            "a count or a shape is not a number of things": any(type(n) is not int or n < 0 for n in numbers),
        }
        found = [fault for fault, present in faults.items() if present]
        if found:
            raise ProtocolError(f"the header of an entry is damaged: {'; '.join(found)}")
        if self.seam_tokens > self.tokens:
            raise ProtocolError(f"an entry of {self.tokens} tokens cannot have a seam of {self.seam_tokens}")


@dataclass(frozen=True, eq=False)
class EntryPayload:
    """An entry on the wire. buffers: flat uint8, one for each tensor of the header, then the token ids.

    numpy arrays, because Ray hands those over in shared memory without copying.
    """

    header: bytes
    buffers: tuple[Buffer, ...]

    @property
    def nbytes(self) -> int:
        return len(self.header) + sum(buffer.nbytes for buffer in self.buffers)


def encode_entry(entry: SegmentEntry) -> EntryPayload:
    """The entry as header and buffers. Tensors on the host are viewed, not copied."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in entry.tensors.items()}
    header = EntryHeader(
        key=entry.key,
        tokens=len(entry.token_ids),
        seam_tokens=entry.seam_tokens,
        tensors=tuple(
            (name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()
        ),
    )
    token_ids = np.ascontiguousarray(entry.token_ids, dtype="<i4").view(np.uint8).reshape(-1)
    return EntryPayload(header.pack(), (*map(_bytes_of, tensors.values()), token_ids))


def decode_entry(payload: EntryPayload, device: str | torch.device = "cpu") -> SegmentEntry:
    """The entry in memory of its own.

    The buffers are copied once, on purpose: views would pin the sender's shared memory for as long as the entry stays
    cached, outside the budget of the cache. Raises ProtocolError where header and buffers do not agree.
    """
    header = EntryHeader.unpack(payload.header)
    found = tuple(buffer.nbytes for buffer in payload.buffers)
    if found != header.buffer_bytes or any(buffer.dtype != np.uint8 for buffer in payload.buffers):
        raise ProtocolError(f"buffers of {found} bytes arrived, the header promises {header.buffer_bytes}: cut short?")
    tensors = {
        name: _copied(buffer, torch.empty(shape, dtype=_DTYPES[dtype])).to(device)
        for (name, dtype, shape), buffer in zip(header.tensors, payload.buffers, strict=False)
    }
    others = {name: tensors.pop(name) for name in _OTHERS}
    try:
        operators = Operators.of_tensors(tensors)
    except ValueError as error:
        raise ProtocolError(f"the operators of an entry are not what this version writes: {error}") from error
    token_ids = payload.buffers[-1].copy().view("<i4").astype(np.int32, copy=False)
    return SegmentEntry(header.key, token_ids, header.seam_tokens, operators, **others)


def _copied(buffer: Buffer, tensor: Tensor) -> Tensor:
    np.copyto(_bytes_of(tensor), buffer)
    return tensor


def _bytes_of(tensor: Tensor) -> Buffer:
    """A flat view of a contiguous host tensor; numpy knows no bfloat16, so bytes it is."""
    flat: Buffer = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat
