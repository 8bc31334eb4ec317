"""Preparing chunks of families with a decay per key channel: `Form` without row decays, all chunks and heads in one."""

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
    """As the families take them: gate `[T, HV, K]`, strength `[T, HV]` or None."""

    query: Tensor
    key: Tensor
    gate: Tensor
    strength: Tensor | None
    chunks: Tensor
    query_stride: int
    key_stride: int


def channel_form(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, runs: Runs, dtype: torch.dtype
) -> Form:
    """Chunks of a family with log decays g `[T, HV, K]`; beta `[T, HV]` or None. In `dtype`."""
    tokens, heads, key_dim = g.shape
    chunks = chunk_bounds(runs, v.device)
    q, k = packed(q), packed(k)
    query, key = torch.empty(2, *g.shape, dtype=dtype, device=v.device)
    erase = key if beta is None else torch.empty_like(key)
    attention = torch.empty(tokens, heads, CHUNK_TOKENS, dtype=dtype, device=v.device)
    solve = None if beta is None else torch.empty_like(attention)
    total = torch.empty(len(chunks), heads, key_dim, dtype=torch.float64, device=v.device)
    form = Form(query, key, erase, packed(v), attention, solve, None, None, total)
    if len(chunks):
        strength = None if beta is None else beta.contiguous()
        inputs = _Inputs(q, k, g.contiguous(), strength, chunks, q.stride(0), k.stride(0))
        block = max(16, triton.next_power_of_2(key_dim))
        _channel_kernel[(len(chunks), heads)](
            inputs, form, heads, heads // k.shape[1], key_dim, block, CHUNK_TOKENS, beta is not None, num_warps=8
        )
    return form


@triton.jit
def _channel_kernel(
    inputs, form, HEADS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr,
    ERASES: tl.constexpr,
):  # fmt: skip
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first, end = tl.load(inputs.chunks + 2 * chunk), tl.load(inputs.chunks + 2 * chunk + 1)
    dtype = form.attention.dtype.element_ty
    shared, own, stride = head // GROUPS * K, head * K, HEADS * K
    key = load_rows(inputs.key + shared, first, end, inputs.key_stride, K, C, BK).to(dtype)
    query = load_rows(inputs.query + shared, first, end, inputs.query_stride, K, C, BK).to(dtype)
    gate = load_rows(inputs.gate + own, first, end, stride, K, C, BK).to(dtype)

    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    attention = tl.where(row == column, tl.sum(query * key, 1)[:, None], 0.0)
    similarity = tl.zeros([C, C], dtype=dtype)
    size = 1
    while size < C:  # the later half of each block of 2 * size tokens reads what the earlier half wrote
        same = row // (2 * size) == column // (2 * size)
        corner = same & (row // size == column // size + 1)
        since, until = _decays(gate, row, column, size, C)
        decayed = tl.trans(key * until)
        attention += tl.where(corner, precise_dot(query * since, decayed), 0.0)
        if ERASES:
            similarity += tl.where(corner, precise_dot(key * since, decayed), 0.0)
        size *= 2

    store_rows(form.attention + head * C, attention, first, end, HEADS * C, C, C, C)
    since, until = _decays(gate, row, column, C, C)
    store_rows(form.query + own, query * since, first, end, stride, K, C, BK)
    store_rows(form.key + own, key * until, first, end, stride, K, C, BK)
    channel = tl.arange(0, BK)
    total = tl.sum(gate.to(tl.float64), 0)
    tl.store(form.log_decay + (chunk * HEADS + head) * K + channel, total, mask=channel < K)
    if ERASES:
        store_rows(form.erase + own, key * since, first, end, stride, K, C, BK)
        strength = load_column(inputs.strength + head, first, end, HEADS, C).to(dtype)
        inverse = unit_lower_inverse(similarity * strength[:, None], C)
        store_rows(form.solve + head * C, inverse * strength[None, :], first, end, HEADS * C, C, C, C)


@triton.jit
def _decays(gate, row, column, size, C: tl.constexpr):
    """Each token's decays within its block of `size` tokens, `[C, BK]`: from the block's start through it, and behind
    it to the end. Sums of terms of one sign, as products with a matrix of ones and zeros."""
    block = row // size == column // size
    since = precise_dot((block & (column <= row)).to(gate.dtype), gate)
    until = precise_dot((block & (column > row)).to(gate.dtype), gate)
    return tl.exp(since), tl.exp(until)
