"""Preparing chunks for `triton_scan`: decays, products and inverses, every chunk and head at once.

One kernel for families with a decay per head, one for those with a decay per key channel; both know whether the family
erases. No decay is divided by another: see `chunking.py`.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic.kernels.chunk_scan.steps import CHUNK_TOKENS, chunk_bounds
from hypic.kernels.chunk_scan.triton_scan import Form
from hypic.kernels.chunk_scan.triton_tiles import (
    load_column,
    load_rows,
    packed,
    precise_dot,
    store_rows,
    unit_lower_inverse,
)
from hypic.kernels.runs import Runs


class _Inputs(NamedTuple):
    """As the families take them; gate and strength `[T, HV]`, `[T, HV, K]`, or `[HV]` with a stride of 0."""

    query: Tensor
    key: Tensor
    gate: Tensor
    strength: Tensor | None
    chunks: Tensor
    query_stride: int
    key_stride: int
    gate_stride: int


def scalar_form(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, runs: Runs, dtype: torch.dtype
) -> Form:
    """Chunks of a family with one log decay a head, g `[T, HV]` or constant `[HV]`; beta `[T, HV]` or None. `Form` with
    row decays, in `dtype`."""
    tokens, heads = v.shape[:2]
    key_dim, chunks = k.shape[2], chunk_bounds(runs, v.device)
    q, k = packed(q), packed(k)
    attention = torch.empty(tokens, heads, CHUNK_TOKENS, dtype=dtype, device=v.device)
    solve = None if beta is None else torch.empty_like(attention)
    start, end = torch.empty(2, tokens, heads, dtype=dtype, device=v.device)
    total = torch.empty(len(chunks), heads, dtype=torch.float64, device=v.device)
    form = Form(q, k, k, packed(v), attention, solve, start, end, total)
    if len(chunks):
        gate_stride = 0 if g.ndim == 1 else heads
        strength = None if beta is None else beta.contiguous()
        inputs = _Inputs(q, k, g.contiguous(), strength, chunks, q.stride(0), k.stride(0), gate_stride)
        block = max(16, triton.next_power_of_2(key_dim))
        _scalar_kernel[(len(chunks), heads)](
            inputs, form, heads, heads // k.shape[1], key_dim, block, CHUNK_TOKENS, beta is not None, num_warps=8
        )
    return form


@triton.jit
def _scalar_kernel(
    inputs, form, HEADS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr,
    ERASES: tl.constexpr,
):  # fmt: skip
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, end = tl.load(inputs.chunks + 2 * chunk), tl.load(inputs.chunks + 2 * chunk + 1)
    dtype = form.attention.dtype.element_ty
    shared = head // GROUPS * K
    key = load_rows(inputs.key + shared, first, end, inputs.key_stride, K, C, BK).to(dtype)
    query = load_rows(inputs.query + shared, first, end, inputs.query_stride, K, C, BK).to(dtype)

    gate = load_column(inputs.gate + head, first, end, inputs.gate_stride, C).to(tl.float64)
    until = tl.cumsum(gate, 0)
    total = tl.sum(gate, 0)
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    between = tl.where(row >= column, until[:, None] - until[None, :], 0.0).to(dtype)
    decay = tl.where(row >= column, tl.exp(between), 0.0)

    at = first + tl.arange(0, C)
    tl.store(form.start_decay + at * HEADS + head, tl.exp(until.to(dtype)), mask=at < end)
    tl.store(form.end_decay + at * HEADS + head, tl.exp((total - until).to(dtype)), mask=at < end)
    tl.store(form.log_decay + chunk * HEADS + head, total)
    attention = precise_dot(query, tl.trans(key)) * decay
    store_rows(form.attention + head * C, attention, first, end, HEADS * C, C, C, C)
    if ERASES:
        strength = load_column(inputs.strength + head, first, end, HEADS, C).to(dtype)
        similarity = precise_dot(key, tl.trans(key)) * decay * strength[:, None]
        inverse = unit_lower_inverse(tl.where(row > column, similarity, 0.0), C)
        store_rows(form.solve + head * C, inverse * strength[None, :], first, end, HEADS * C, C, C, C)
