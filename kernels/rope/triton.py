"""Rotary position embedding in Triton: one launch that reads each vector once and writes it where it belongs, so that
placing cached keys in a prompt costs what copying them would."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic.kernels.rope.naive import check_shapes

_BLOCK_ROWS = 32


@torch.no_grad()
def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
    """As in `naive.py`. x and out may be any views of at most four dimensions, such as a span of a sequence's keys."""
    check_shapes(x, cos, sin, out)
    out = torch.empty_like(x) if out is None else out
    wide, into = (t if t.ndim == 4 else t.unsqueeze(0) for t in (x, out))
    if wide.ndim != 4:
        raise ValueError(f"x must be [T, H, D] or [F, T, H, D], found {tuple(x.shape)}")
    if x.numel() == 0:
        return out
    groups, tokens, heads, dim = wide.shape
    half = cos.shape[1]
    grid = (triton.cdiv(tokens * heads, _BLOCK_ROWS), groups)
    _rotate[grid](
        wide,
        into,
        cos.contiguous(),
        sin.contiguous(),
        tokens * heads,
        *wide.stride(),
        *into.stride(),
        heads,
        half,
        dim - 2 * half,
        ROWS=_BLOCK_ROWS,
        HALF=triton.next_power_of_2(max(half, 1)),
        REST=triton.next_power_of_2(max(dim - 2 * half, 1)),
        HAS_REST=dim > 2 * half,
    )
    return out


@triton.jit
def _rotate(
    x,
    out,
    cos,
    sin,
    rows,
    x_group,
    x_token,
    x_head,
    x_dim,
    out_group,
    out_token,
    out_head,
    out_dim,
    heads,
    half,
    rest,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    HAS_REST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    group = tl.program_id(1).to(tl.int64)
    token, head = row // heads, row % heads
    source = x + (group * x_group + token * x_token + head * x_head)[:, None]
    target = out + (group * out_group + token * out_token + head * out_head)[:, None]

    channel = tl.arange(0, HALF)[None, :]
    inside = (row < rows)[:, None] & (channel < half)
    angle = token[:, None] * half + channel
    c = tl.load(cos + angle, mask=inside, other=0.0)
    s = tl.load(sin + angle, mask=inside, other=0.0)
    first = tl.load(source + channel * x_dim, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + (channel + half) * x_dim, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + channel * out_dim, first * c - second * s, mask=inside)
    tl.store(target + (channel + half) * out_dim, second * c + first * s, mask=inside)

    if HAS_REST:
        beyond = 2 * half + tl.arange(0, REST)[None, :]
        kept = (row < rows)[:, None] & (tl.arange(0, REST)[None, :] < rest)
        tl.store(target + beyond * out_dim, tl.load(source + beyond * x_dim, mask=kept), mask=kept)
