"""Entries survive the wire bit by bit; what is damaged is refused with a reason."""

from dataclasses import replace

import msgpack
import numpy as np
import pytest
import torch

from hypic.cache.entry import SegmentEntry
from hypic.protocol import EntryHeader, EntryPayload, ProtocolError, decode_entry, encode_entry


def entry_of(dtype: torch.dtype, tokens: int = 65, attention_layers: int = 2) -> SegmentEntry:
    torch.manual_seed(7)
    kv = (attention_layers, tokens - 8, 2, 16)
    return SegmentEntry(
        key=bytes(range(32)),
        token_ids=np.arange(tokens, dtype=np.int32),
        seam_tokens=8,
        transitions=torch.randn(3, 4, 16, 16),
        states=torch.randn(3, 4, 16, 24),
        conv_tails=torch.randn(3, 3, 160).to(dtype),
        keys=torch.randn(kv).to(dtype),
        values=torch.randn(2 * kv[1], attention_layers, 2, 16).to(dtype)[::2].transpose(0, 1),  # not contiguous
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attention_layers", [2, 0])
def test_round_trip_keeps_every_bit(dtype: torch.dtype, attention_layers: int) -> None:
    entry = entry_of(dtype, attention_layers=attention_layers)
    payload = encode_entry(entry)
    for buffer in payload.buffers:
        buffer.flags.writeable = False  # as it comes out of shared memory
    arrived = decode_entry(payload)
    assert (arrived.key, arrived.seam_tokens) == (entry.key, entry.seam_tokens)
    assert np.array_equal(arrived.token_ids, entry.token_ids)
    assert arrived.token_ids.dtype == np.int32
    for name, tensor in entry.tensors.items():
        assert arrived.tensors[name].dtype == tensor.dtype
        assert torch.equal(arrived.tensors[name], tensor), name
    assert arrived.nbytes == entry.nbytes


def test_an_arrived_entry_shares_no_memory_with_the_wire() -> None:
    payload = encode_entry(entry_of(torch.float32))
    arrived = decode_entry(payload)
    before = arrived.states.clone()
    payload.buffers[1][:] = 0
    assert torch.equal(arrived.states, before)


def repacked(payload: EntryPayload, **changes: object) -> EntryPayload:
    return replace(payload, header=msgpack.packb({**msgpack.unpackb(payload.header), **changes}))


def test_damage_is_named() -> None:
    payload = encode_entry(entry_of(torch.float32))
    fields = msgpack.unpackb(payload.header)["tensors"]
    damaged = {
        "header of an entry cannot be read": replace(payload, header=payload.header[:-3]),
        "cannot be read": replace(payload, header=b"\xc1"),
        "schema": repacked(payload, schema=[99, 1]),
        "32 bytes": repacked(payload, key=b"short"),
        "not a number of things": repacked(payload, tokens=-1),
        "seam of 66": repacked(payload, seam_tokens=66),
        "its tensors are not": repacked(payload, tensors=fields[1:]),
        "a dtype is none of": repacked(payload, tensors=[[n, "object", s] for n, _, s in fields]),
        "cut short": replace(payload, buffers=(payload.buffers[0][:-1], *payload.buffers[1:])),
        "header promises": replace(payload, buffers=payload.buffers[:-1]),
    }
    for message, broken in damaged.items():
        with pytest.raises(ProtocolError, match=message):
            decode_entry(broken)


@pytest.mark.parametrize("at", range(0, 200, 7))
def test_a_flipped_byte_in_the_header_is_refused_or_harmless(at: int) -> None:
    """Never another exception than ProtocolError, and never a tensor of the wrong size."""
    payload = encode_entry(entry_of(torch.float32))
    header = bytearray(payload.header)
    header[at % len(header)] ^= 0x55
    try:
        arrived = decode_entry(replace(payload, header=bytes(header)))
    except ProtocolError:
        return
    assert EntryHeader.unpack(bytes(header)).tokens == len(arrived.token_ids)
