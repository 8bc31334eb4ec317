"""The causal convolution in Triton: one launch a layer, however many spans there are and however short they are."""

from functools import lru_cache
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic.kernels.causal_conv.naive import check_spans, check_step

_BLOCK_TOKENS, _BLOCK_CHANNELS = 16, 128


@torch.no_grad()
def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, span_offsets: tuple[int, ...], tails: Tensor
) -> tuple[Tensor, Tensor]:
    """As in `naive.py`. Sums are float32 and rounded once."""
    check_spans(x, weight, span_offsets, tails)
    lead, spans = weight.shape[1] - 1, len(span_offsets) - 1
    output = x.new_empty(x.shape)
    extended = x.new_empty(x.shape[0] + spans * lead, x.shape[1])
    if extended.numel():
        table = _rows(span_offsets, lead, x.device)
        grid = (triton.cdiv(extended.shape[0], _BLOCK_TOKENS), triton.cdiv(x.shape[1], _BLOCK_CHANNELS))
        _convolve[grid](
            x.contiguous(),
            weight.contiguous(),
            bias if bias is not None else weight,
            tails.contiguous(),
            table,
            output,
            extended,
            extended.shape[0],
            x.shape[1],
            WIDTH=lead + 1,
            HAS_BIAS=bias is not None,
            TOKENS=_BLOCK_TOKENS,
            CHANNELS=_BLOCK_CHANNELS,
        )
    return output, extended


@torch.no_grad()
def causal_conv_step(x: Tensor, weight: Tensor, bias: Tensor | None, tails: Tensor) -> tuple[Tensor, Tensor]:
    """As in `naive.py`. Sums are float32 and rounded once."""
    check_step(x, weight, tails)
    output, after = x.new_empty(x.shape), tails.new_empty(tails.shape)
    if x.numel():
        _step[(x.shape[0], triton.cdiv(x.shape[1], _BLOCK_CHANNELS))](
            x.contiguous(),
            weight.contiguous(),
            bias if bias is not None else weight,
            tails.contiguous(),
            output,
            after,
            x.shape[1],
            WIDTH=weight.shape[1],
            HAS_BIAS=bias is not None,
            CHANNELS=_BLOCK_CHANNELS,
        )
    return output, after


@lru_cache(maxsize=16)
def _rows(span_offsets: tuple[int, ...], lead: int, device: torch.device) -> Tensor:
    """For each row of the extended inputs: its span, and its place in that span, -lead to -1 within the tail. int32
    `[T + P(c-1), 2]`; one table serves all layers of a forward."""
    lengths = torch.tensor([end - start + lead for start, end in pairwise(span_offsets)])
    span = torch.arange(len(lengths)).repeat_interleave(lengths)
    begins = lengths.cumsum(0) - lengths
    place = torch.arange(len(span)) - begins[span] - lead
    return torch.stack([span, place], dim=1).int().to(device)


@triton.jit
def _convolve(
    x,
    weight,
    bias,
    tails,
    table,
    output,
    extended,
    rows,
    channels,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    valid, inside = row < rows, channel < channels
    span = tl.load(table + 2 * row, mask=valid, other=0).to(tl.int64)
    place = tl.load(table + 2 * row + 1, mask=valid, other=0)
    token = row - (span + 1) * (WIDTH - 1)  # of the packed input, where the row is not one of a tail

    total = tl.zeros([TOKENS, CHANNELS], dtype=tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    value = tl.zeros([TOKENS, CHANNELS], dtype=x.dtype.element_ty)
    for tap in tl.static_range(WIDTH):
        age = WIDTH - 1 - tap
        in_text = place - age >= 0
        in_tail = (place - age < 0) & (place - age >= 1 - WIDTH)
        own = x + (token - age)[:, None] * channels + channel[None, :]
        before = tails + ((span + 1) * (WIDTH - 1) + place - age)[:, None] * channels + channel[None, :]
        value = tl.load(own, mask=(valid & in_text)[:, None] & inside[None, :], other=0.0)
        value += tl.load(before, mask=(valid & in_tail)[:, None] & inside[None, :], other=0.0).to(value.dtype)
        factor = tl.load(weight + channel * WIDTH + tap, mask=inside, other=0.0).to(tl.float32)
        total += value.to(tl.float32) * factor[None, :]
    # The last tap is the row itself.
    tl.store(extended + row[:, None] * channels + channel[None, :], value, mask=valid[:, None] & inside[None, :])
    computed = (valid & (place >= 0))[:, None] & inside[None, :]
    tl.store(output + token[:, None] * channels + channel[None, :], total, mask=computed)


@triton.jit
def _step(
    x,
    weight,
    bias,
    tails,
    output,
    after,
    channels,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < channels
    total = tl.zeros([CHANNELS], dtype=tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(WIDTH):
        if tap < WIDTH - 1:
            value = tl.load(tails + (row * (WIDTH - 1) + tap) * channels + channel, mask=inside, other=0.0)
        else:
            value = tl.load(x + row * channels + channel, mask=inside, other=0.0)
        total += value.to(tl.float32) * tl.load(weight + channel * WIDTH + tap, mask=inside, other=0.0).to(tl.float32)
        if tap > 0:
            tl.store(after + (row * (WIDTH - 1) + tap - 1) * channels + channel, value, mask=inside)
    tl.store(output + row * channels + channel, total, mask=inside)
