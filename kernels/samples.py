"""Inputs on which kernels are compared with their references, and timed.

Of three sizes: "check" is small and odd, for the comparison; "cpu" is worth timing on a CPU; "gpu" has the geometry of
Qwen3.5-35B-A3B (16 query and 2 key heads of 256, of which 64 dimensions are rotated; 8,192 channels convolved). Bytes
and operations are the least that the work takes: each input read once, each output written once.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hypic.kernels.runs import Runs

Size = Literal["check", "cpu", "gpu"]


@dataclass(frozen=True)
class Sample:
    """Arguments of an operation by name; what it must move and compute at least."""

    arguments: dict[str, Any]
    moved_bytes: int
    flops: int = 0


def rotate(size: Size, dtype: torch.dtype) -> Sample:
    """Cached keys of a segment, placed: `[F, T, HK, D]`, rotated in part."""
    layers, tokens, heads, dim, half = {
        "check": (2, 65, 3, 40, 12),
        "cpu": (2, 1024, 2, 64, 8),
        "gpu": (10, 1024, 2, 256, 32),
    }[size]
    draw = _Draw(dtype)
    x = draw(layers, tokens, heads, dim)
    angles = torch.rand(tokens, half, generator=draw.generator) * 6
    return Sample({"x": x, "cos": angles.cos(), "sin": angles.sin()}, 2 * x.nbytes + 2 * 4 * angles.numel())


def causal_conv(size: Size, dtype: torch.dtype) -> Sample:
    """Spans of a packed batch, one of them empty, some shorter than the convolution's reach."""
    offsets, channels = {
        "check": ((0, 1, 1, 3, 33, 65), 70),
        "cpu": ((0, 8, 16, 1024), 512),
        "gpu": ((0, 8, 16, 2048, 8192), 8192),
    }[size]
    draw = _Draw(dtype)
    x, tails = draw(offsets[-1], channels), draw(len(offsets) - 1, 3, channels)
    arguments = {"x": x, "weight": draw(channels, 4), "bias": draw(channels), "span_offsets": offsets, "tails": tails}
    return Sample(arguments, 3 * x.nbytes + 2 * tails.nbytes, 8 * x.numel())


def causal_conv_step(size: Size, dtype: torch.dtype) -> Sample:
    """One token for each sequence."""
    rows, channels = {"check": (3, 70), "cpu": (16, 512), "gpu": (64, 8192)}[size]
    draw = _Draw(dtype)
    x, tails = draw(rows, channels), draw(rows, 3, channels)
    arguments = {"x": x, "weight": draw(channels, 4), "bias": draw(channels), "tails": tails}
    return Sample(arguments, 2 * x.nbytes + 2 * tails.nbytes, 8 * x.numel())


def prefill(size: Size, dtype: torch.dtype) -> Sample:
    """Whole texts, each attending to itself."""
    lengths = {"check": (65, 1), "cpu": (1024,), "gpu": (8192, 1024)}[size]
    return _attention(size, dtype, [((0, length),) for length in lengths], list(lengths))


def seams(size: Size, dtype: torch.dtype) -> Sample:
    """The combine pass: the first eight tokens of each document, and a question, over all that stands before them."""
    documents, tokens = {"check": (3, 40), "cpu": (4, 512), "gpu": (16, 1024)}[size]
    spans = [(document * tokens, 8) for document in range(documents)]
    return _attention(size, dtype, [(*spans, (documents * tokens, 17))], [documents * tokens + 17])


def decode(size: Size, dtype: torch.dtype) -> Sample:
    """One token for each of many texts, keys split among programs."""
    texts, tokens = {"check": (2, 530), "cpu": (8, 1024), "gpu": (16, 8192)}[size]
    lengths = [tokens - 7 * text for text in range(texts)]
    return _attention(size, dtype, [((length - 1, 1),) for length in lengths], lengths)


def window_and_sinks(size: Size, dtype: torch.dtype) -> Sample:
    """A layer that sees the last keys alone, with a sink for each head (gpt-oss)."""
    tokens, window = {"check": (65, 7), "cpu": (1024, 128), "gpu": (8192, 128)}[size]
    sample = _attention(size, dtype, [((0, tokens),)], [tokens], window)
    heads = sample.arguments["q"].shape[1]
    return Sample(sample.arguments | {"sinks": _Draw(torch.float32)(heads)}, sample.moved_bytes, sample.flops)


def gated_delta(size: Size, dtype: torch.dtype) -> Sample:
    """A build of a document, [seam][remainder], whose transition and entering state are wanted."""
    sample, heads, key_dim, value_dim = _scan(size, dtype)
    write = torch.rand(sample.arguments["g"].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    pass_flops = 6 * key_dim * (value_dim + key_dim)  # reading, erasing and writing, of S and of T
    flops = len(write) * heads * pass_flops
    return Sample(sample.arguments | {"beta": write}, sample.moved_bytes + 4 * heads * key_dim * key_dim, flops)


def scalar_decay(size: Size, dtype: torch.dtype) -> Sample:
    """As `gated_delta`, of a family that never erases."""
    return _scan(size, dtype)[0]


def gated_delta_step(size: Size, dtype: torch.dtype) -> Sample:
    """One token for each state, delta rule."""
    sample = _step(size, dtype)
    write = torch.rand(sample.arguments["g"].shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return Sample(sample.arguments | {"beta": write}, sample.moved_bytes, sample.flops * 3 // 2)


def scalar_decay_step(size: Size, dtype: torch.dtype) -> Sample:
    """One token for each state, without erasing."""
    return _step(size, dtype)


def _scan(size: Size, dtype: torch.dtype) -> tuple[Sample, int, int, int]:
    """Arguments of a scan without those of its family; value heads, K and V."""
    lengths, key_heads, heads, key_dim, value_dim = {
        "check": ([[3, 33]], 1, 2, 24, 16),
        "cpu": ([[8, 1016]], 4, 4, 64, 64),
        "gpu": ([[8, 1016]] * 8, 16, 32, 128, 128),
    }[size]
    draw, runs = _Draw(dtype), Runs.from_lengths(lengths)
    arguments = _tokens(draw, runs.num_tokens, key_heads, heads, key_dim, value_dim)
    states = torch.randn(runs.num_sequences, heads, key_dim, value_dim, generator=draw.generator)
    wanted = tuple(range(1, runs.num_runs, 2))
    moved = sum(tensor.nbytes for tensor in arguments.values()) + arguments["v"].numel() * 4 + 2 * states.nbytes
    flops = 4 * runs.num_tokens * heads * key_dim * value_dim
    options = {"runs": runs, "initial_states": states, "want_entering": wanted, "want_transition": wanted}
    return Sample(arguments | options, moved, flops), heads, key_dim, value_dim


def kimi_delta(size: Size, dtype: torch.dtype) -> Sample:
    """As `gated_delta`, with a decay per key channel (KDA)."""
    return _by_channel(gated_delta(size, dtype))


def diagonal_decay(size: Size, dtype: torch.dtype) -> Sample:
    """As `scalar_decay`, with a decay per key channel."""
    return _by_channel(scalar_decay(size, dtype))


def kimi_delta_step(size: Size, dtype: torch.dtype) -> Sample:
    """One token for each state, delta rule with a decay per key channel."""
    return _by_channel(gated_delta_step(size, dtype))


def diagonal_decay_step(size: Size, dtype: torch.dtype) -> Sample:
    """One token for each state, a decay per key channel."""
    return _by_channel(scalar_decay_step(size, dtype))


def _by_channel(sample: Sample) -> Sample:
    """The same with a log decay for each channel of K, spread around that of the head."""
    g, key_dim = sample.arguments["g"], sample.arguments["k"].shape[-1]
    channels = g[..., None] * torch.linspace(0.5, 1.5, key_dim)
    return Sample(sample.arguments | {"g": channels}, sample.moved_bytes + channels.nbytes - g.nbytes, sample.flops)


def _step(size: Size, dtype: torch.dtype) -> Sample:
    rows, key_heads, heads, key_dim, value_dim = {
        "check": (3, 1, 2, 24, 16),
        "cpu": (16, 4, 4, 64, 64),
        "gpu": (64, 16, 32, 128, 128),
    }[size]
    draw = _Draw(dtype)
    arguments = _tokens(draw, rows, key_heads, heads, key_dim, value_dim)
    states = torch.randn(rows, heads, key_dim, value_dim, generator=draw.generator)
    moved = sum(tensor.nbytes for tensor in arguments.values()) + 2 * states.nbytes
    return Sample(arguments | {"states": states}, moved, 4 * states.numel())


def _tokens(draw: "_Draw", tokens: int, key_heads: int, heads: int, key_dim: int, value_dim: int) -> dict[str, Any]:
    """Unit keys, scaled queries, values, and log decays of heads that forget at different paces."""
    q, k = (torch.nn.functional.normalize(draw(tokens, key_heads, key_dim).float(), dim=-1) for _ in range(2))
    pace = torch.logspace(-3, -1, heads)
    g = -pace * torch.rand(tokens, heads, generator=draw.generator)
    v = draw(tokens, heads, value_dim)
    return {"q": (q * key_dim**-0.5).to(draw.dtype), "k": k.to(draw.dtype), "v": v, "g": g}


class _Draw:
    """Normal values of a dtype, the same each time."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.dtype)


def _attention(
    size: Size, dtype: torch.dtype, spans: list[tuple[tuple[int, int], ...]], lengths: list[int], window: int = 0
) -> Sample:
    heads, kv_heads, key_dim, value_dim = {
        "check": (6, 2, 40, 24),
        "cpu": (8, 2, 64, 64),
        "gpu": (16, 2, 256, 256),
    }[size]
    draw = _Draw(dtype)
    queries = sum(count for text in spans for _, count in text)
    q = draw(queries, heads, key_dim)
    keys = [draw(length, kv_heads, key_dim) for length in lengths]
    values = [draw(length, kv_heads, value_dim) for length in lengths]
    seen = sum(min(at + n + 1, window or at + n + 1) for text in spans for at, count in text for n in range(count))
    moved = q.nbytes * (key_dim + value_dim) // key_dim + sum(tensor.nbytes for tensor in (*keys, *values))
    arguments = {"q": q, "keys": keys, "values": values, "spans": spans, "scale": key_dim**-0.5}
    return Sample(
        arguments | {"window": window or None, "sinks": None}, moved, 2 * heads * (key_dim + value_dim) * seen
    )
