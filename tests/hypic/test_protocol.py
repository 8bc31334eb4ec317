"""Entries survive the wire bit by bit; what is damaged is refused with a reason."""

from dataclasses import replace

import msgpack
import numpy as np
import pytest
import torch

from hypic.cache.entry import SegmentEntry
from hypic.linear.operators import LOSSLESS, OperatorFormats, Operators
from hypic.protocol import EntryHeader, EntryPayload, ProtocolError, decode_entry, encode_entry

ALL = [LOSSLESS, OperatorFormats(1e-3, "bf16"), OperatorFormats(1e-3, "int8"), OperatorFormats(0.0, "int8")]


def operators(formats: OperatorFormats) -> Operators:
    """Of 3 layers and 4 heads; where T may be off, it has heads of all four formats."""
    torch.manual_seed(7)
    rest = torch.randn(3, 4, 16, 16) * torch.tensor([0.0, 1e-3, 5e-2, 1.0])[:, None, None]
    transitions = rest + 0.9 * torch.eye(16) * torch.tensor([0.0, 1.0, 1.0, 1.0])[:, None, None]
    made = Operators.of(transitions, torch.randn(3, 4, 16, 24), formats)
    assert not formats.transition_tolerance or made.tensors["transitions.formats"].tolist() == [[0, 1, 2, 3]] * 3
    return made


def entry_of(
    dtype: torch.dtype, tokens: int = 65, attention_layers: int = 2, formats: OperatorFormats = ALL[2]
) -> SegmentEntry:
    torch.manual_seed(7)
    kv = (attention_layers, tokens - 8, 2, 16)
    return SegmentEntry(
        key=bytes(range(32)),
        token_ids=np.arange(tokens, dtype=np.int32),
        seam_tokens=8,
        operators=operators(formats),
        conv_tails=torch.randn(3, 3, 160).to(dtype),
        keys=torch.randn(kv).to(dtype),
        values=torch.randn(2 * kv[1], attention_layers, 2, 16).to(dtype)[::2].transpose(0, 1),  # not contiguous
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("attention_layers", [2, 0])
@pytest.mark.parametrize("formats", ALL, ids=lambda formats: formats.name)
def test_round_trip_keeps_every_bit(dtype: torch.dtype, attention_layers: int, formats: OperatorFormats) -> None:
    entry = entry_of(dtype, attention_layers=attention_layers, formats=formats)
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
    assert arrived.nbytes == entry.nbytes == payload.nbytes - len(payload.header), "true bytes, also on the wire"


def test_an_arrived_entry_shares_no_memory_with_the_wire() -> None:
    payload = encode_entry(entry_of(torch.float32, formats=LOSSLESS))
    arrived = decode_entry(payload)
    before = {name: tensor.clone() for name, tensor in arrived.tensors.items()}
    for buffer in payload.buffers:
        buffer[:] = 0
    assert all(torch.equal(arrived.tensors[name], tensor) for name, tensor in before.items())


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
        "its tensors do not end with": repacked(payload, tensors=fields[:-1]),
        "two tensors have one name": repacked(payload, tensors=[fields[0], *fields]),
        "a dtype is none of": repacked(payload, tensors=[[n, "object", s] for n, _, s in fields]),
        "cut short": replace(payload, buffers=(payload.buffers[0][:-1], *payload.buffers[1:])),
        "header promises": replace(payload, buffers=payload.buffers[:-1]),
    }
    for message, broken in damaged.items():
        with pytest.raises(ProtocolError, match=message):
            decode_entry(broken)


def test_operators_that_do_not_fit_together_are_refused() -> None:
    """Whatever the sizes of the buffers say: a head of no format, one more head of a format than there are matrices,
    scales for other heads, parts that are missing or of another version."""
    payload = encode_entry(entry_of(torch.float32))
    fields = msgpack.unpackb(payload.header)["tensors"]
    names = [name for name, _, _ in fields]
    formats = payload.buffers[0].copy()

    def with_formats(first: int) -> EntryPayload:
        changed = formats.copy()
        changed[0] = first
        return replace(payload, buffers=(changed, *payload.buffers[1:]))

    def without(name: str) -> EntryPayload:
        at = names.index(name)
        left = repacked(payload, tensors=fields[:at] + fields[at + 1 :])
        return replace(left, buffers=payload.buffers[:at] + payload.buffers[at + 1 :])

    def renamed(name: str, other: str) -> EntryPayload:
        return repacked(payload, tensors=[[other if n == name else n, d, s] for n, d, s in fields])

    reshaped = [[n, d, [s[0] * s[1], 1] if n == "transitions.rows" else s] for n, d, s in fields]
    damaged = {
        "of 0 to 3": with_formats(7),
        "codes torch.int8": with_formats(1),
        "rows torch.float32": repacked(payload, tensors=reshaped),
        "missing or too many": without("transitions.wholes"),
        "do not belong to states": without("states.columns"),
        "no part of an operator is called 'operator.halves'": renamed("transitions.halves", "operator.halves"),
        "too many": renamed("states.rows", "states.scales"),
    }
    for message, broken in damaged.items():
        with pytest.raises(ProtocolError, match=f"operators of an entry are not .*{message}"):
            decode_entry(broken)


@pytest.mark.parametrize("at", range(0, 700, 13))
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
