"""One token of the recurrence for each of N states, in one Triton launch: each state is read once and written once."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic.kernels.chunk_scan.triton_tiles import load_column, load_rows, packed, store_rows

COLUMNS = 16  # of a state, `[K, 16]`, a program


class _Step(NamedTuple):
    """As `recurrent_step` takes them and what it returns; strides count elements from one sequence to the next."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor | None
    strength: Tensor | None
    states: Tensor
    output: Tensor
    new: Tensor
    query_stride: int
    key_stride: int
    value_stride: int
    decay_stride: int


@torch.no_grad()
def recurrent_step(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, beta: Tensor | None, states: Tensor
) -> tuple[Tensor, Tensor]:
    """As in `step.py`."""
    heads, key_dim, value_dim = states.shape[1:]
    output = states.new_empty(v.shape)
    new = torch.empty(states.shape, dtype=states.dtype, device=states.device)
    q, k, v = packed(q), packed(k), packed(v)
    log_decay, beta = (None if gate is None else gate.contiguous() for gate in (log_decay, beta))
    decay_stride = 0 if log_decay is None or log_decay.ndim == 1 else log_decay.stride(0)
    tensors = (q, k, v, log_decay, beta, states.contiguous(), output, new)
    step = _Step(*tensors, q.stride(0), k.stride(0), v.stride(0), decay_stride)
    grid = (triton.cdiv(value_dim, COLUMNS), len(states) * heads)
    if grid[1]:
        block = max(16, triton.next_power_of_2(key_dim))
        decay_axes = 0 if log_decay is None else log_decay.ndim
        _step_kernel[grid](
            step, heads, heads // k.shape[1], key_dim, value_dim, block, COLUMNS, decay_axes, beta is not None
        )
    return output, new


@triton.jit
def _step_kernel(
    step, HEADS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, DECAY_AXES: tl.constexpr, ERASES: tl.constexpr,
):  # fmt: skip
    column, row = tl.program_id(0) * BV, tl.program_id(1).to(tl.int64)
    sequence, head = row // HEADS, row % HEADS
    width, at, own = V - column, row * K * V + column, head // GROUPS * K
    state = load_rows(step.states + at, 0, K, V, width, BK, BV)
    query = load_column(step.query + sequence * step.query_stride + own, 0, K, 1, BK).to(state.dtype)
    key = load_column(step.key + sequence * step.key_stride + own, 0, K, 1, BK).to(state.dtype)
    value = load_column(step.value + sequence * step.value_stride + head * V + column, 0, width, 1, BV)
    write = value.to(state.dtype)
    if DECAY_AXES == 3:
        decay = load_column(step.log_decay + sequence * step.decay_stride + head * K, 0, K, 1, BK)
        state *= tl.exp(decay.to(state.dtype))[:, None]
    elif DECAY_AXES > 0:
        state *= tl.exp(tl.load(step.log_decay + sequence * step.decay_stride + head).to(state.dtype))
    if ERASES:
        write = (write - tl.sum(state * key[:, None], 0)) * tl.load(step.strength + row).to(state.dtype)
    state += key[:, None] * write[None, :]
    store_rows(step.new + at, state, 0, K, V, width, BK, BV)
    read = tl.sum(state * query[:, None], 0)
    place = tl.arange(0, BV)
    tl.store(step.output + row * V + column + place, read, mask=place < width)
