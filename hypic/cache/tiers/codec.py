"""How the engine's payloads are written: segments as they travel between processes, prefixes as their tensors."""

from collections.abc import Sequence

import msgpack  # type: ignore[import-untyped]
import numpy as np
import torch

from hypic.cache.entry import KvSpan, SegmentEntry, StateEnd
from hypic.cache.tiers.image import Buffer
from hypic.cache.tiers.tier import Payload
from hypic.protocol import EntryPayload, decode_entry, encode_entry

_PREFIX_PAYLOADS: dict[str, type[KvSpan] | type[StateEnd]] = {"kv": KvSpan, "state": StateEnd}
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}


class EngineCodec:
    """Writes `SegmentEntry`, `KvSpan` and `StateEnd`. device: where what is read goes."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = device

    def encode(self, payload: Payload) -> tuple[bytes, Sequence[Buffer]]:
        if isinstance(payload, SegmentEntry):
            sent = encode_entry(payload)
            return bytes(msgpack.packb(["segment", sent.header])), sent.buffers
        assert isinstance(payload, KvSpan | StateEnd), f"no codec for {type(payload).__name__}"
        tensors = [tensor.detach().cpu().contiguous() for tensor in payload.tensors]
        shapes = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in tensors]
        kind = next(kind for kind, made in _PREFIX_PAYLOADS.items() if isinstance(payload, made))
        buffers = [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in tensors]
        return bytes(msgpack.packb([kind, shapes])), buffers

    def decode(self, header: bytes, buffers: Sequence[Buffer]) -> Payload:
        kind, rest = msgpack.unpackb(header)
        if kind == "segment":
            return decode_entry(EntryPayload(rest, tuple(buffers)), self.device)
        tensors = []
        for (dtype, shape), buffer in zip(rest, buffers, strict=True):
            tensor = torch.empty(shape, dtype=_DTYPES[dtype])
            np.copyto(tensor.reshape(-1).view(torch.uint8).numpy(), buffer)
            tensors.append(tensor.to(self.device))
        return _PREFIX_PAYLOADS[kind](*tensors)
