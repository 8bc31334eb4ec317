"""The state-passing loop of `naive.py` as one Triton launch: every sequence, head and block of state columns at once.

A program keeps `[K, BV]` of a state in registers and walks through the steps of its sequence: apply the cached pairs
that stand there, note the state, read and write chunk after chunk. Transitions of the delta rule are columns of the
same walk that start as I and are never written to; they need nothing from before their run, so each wanted run has
programs of its own beside those of the states, and a run whose transition is not wanted has none.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hypic.kernels.chunk_scan.naive import Pair, ScanResult
from hypic.kernels.chunk_scan.steps import CHUNK_TOKENS, STEP_FIELDS, Pairs, Tables, Want, stack_pairs, tables
from hypic.kernels.chunk_scan.triton_tiles import load_column, load_rows, precise_dot, store_rows
from hypic.kernels.runs import Runs

STEP = tl.constexpr(STEP_FIELDS)
COLUMNS = 16  # of a state, `[K, 16]`, which stay in registers; with K = 128 and 8 warps nothing spills on sm_90


class Form(NamedTuple):
    """The chunk form of a family's tokens, by token; C is `CHUNK_TOKENS`.

    query, key, erase: `[T, H, K]`, H dividing HV, one row a token at any stride. With row decays they are as the family
    takes them, and the loop applies start_decay and end_decay, `[T, HV]`, from the chunk's start and to its end; else
    they are decayed already. write: `[T, HV, V]`. attention, solve: `[T, HV, C]`, a row for each token of the chunk:
    what its query reads of what the chunk writes, and (I + L)⁻¹β. log_decay: float64 `[M, HV]`, or `[M, HV, K]` without
    row decays. solve is None for families that never erase.
    """

    query: Tensor
    key: Tensor
    erase: Tensor
    write: Tensor
    attention: Tensor
    solve: Tensor | None
    start_decay: Tensor | None
    end_decay: Tensor | None
    log_decay: Tensor


class _Kept(NamedTuple):
    """States that go in, `[N, H, K, V]`, and what comes out of the loop: see `ScanResult`."""

    initial: Tensor
    final: Tensor
    entering: Tensor
    transitions: Tensor


class _Strides(NamedTuple):
    """Elements from one token to the next."""

    query: int
    key: int
    erase: int
    write: int


class _Loop(NamedTuple):
    """What the kernel reads and writes. states: programs of a head that carry states; the others carry operators."""

    form: Form
    walk: Tables
    pairs: Pairs | None
    kept: _Kept
    output: Tensor
    stride: _Strides
    states: int


@torch.no_grad()
def chunk_scan(
    form: Form,
    runs: Runs,
    initial_states: Tensor,
    *,
    pairs: Mapping[int, Sequence[Pair]] | None = None,
    want_entering: Collection[int] = (),
    want_transition: Collection[int] = (),
) -> ScanResult:
    """Carry the states of N sequences through their chunks; the rest as in `naive.chunk_scan`."""
    heads, key_dim, value_dim = initial_states.shape[1:]
    device, erases, rows = initial_states.device, form.solve is not None, form.start_decay is not None
    before = [list((pairs or {}).get(run, ())) for run in range(runs.num_runs)]
    entering, transitions = (tuple(sorted(set(want))) for want in (want_entering, want_transition))
    walk = tables(runs, Want(tuple(len(p) for p in before), entering, transitions), device)
    flat = [pair for own in before for pair in own]
    applied = stack_pairs(flat, heads, key_dim, initial_states.dtype) if flat else None

    shape = (key_dim, key_dim) if erases else (() if rows else (key_dim,))
    kept = _Kept(
        initial_states.contiguous(),
        torch.empty(initial_states.shape, dtype=initial_states.dtype, device=device),
        initial_states.new_empty(len(entering), heads, key_dim, value_dim),
        initial_states.new_empty(len(transitions), heads, *shape),
    )
    output = initial_states.new_empty(runs.num_tokens, heads, value_dim)
    _launch(form, walk, applied, kept, output)
    return ScanResult(
        output,
        kept.final,
        {run: kept.entering[row].clone() for row, run in enumerate(entering)},
        {run: kept.transitions[row].clone() for row, run in enumerate(transitions)},
    )


def _launch(form: Form, walk: Tables, applied: Pairs | None, kept: _Kept, output: Tensor) -> None:
    heads, key_dim, value_dim = kept.initial.shape[1:]
    key_block = max(16, triton.next_power_of_2(key_dim))
    states = (len(walk.walks) - 1) * triton.cdiv(value_dim, COLUMNS)
    erases = form.solve is not None
    operators = len(walk.operators) * triton.cdiv(key_dim, COLUMNS) if erases else 0
    if not (states + operators) * heads:
        return
    strides = (form.query.stride(0), form.key.stride(0), form.erase.stride(0), form.write.stride(0))
    _scan_kernel[(states + operators, heads)](
        _Loop(form, walk, applied, kept, output, _Strides(*strides), states),
        heads,
        heads // form.key.shape[1],
        key_dim,
        value_dim,
        CHUNK_TOKENS,
        key_block,
        COLUMNS,
        erases,
        form.start_decay is not None,
        _pair_kind(applied),
        operators > 0,
        num_warps=8,
    )


def _pair_kind(applied: Pairs | None) -> int:
    """Which of the tables of `Pairs` are in use: 0 none, 1 scales, 2 scales by channel, +2 with matrices."""
    if applied is None:
        return 0
    return applied.scales.ndim - 1 + (2 if len(applied.matrices) else 0)


@triton.jit
def _scan_kernel(
    loop, HEADS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, ERASES: tl.constexpr, ROW_DECAYS: tl.constexpr, PAIRS: tl.constexpr,
    OPERATORS: tl.constexpr,
):  # fmt: skip
    program, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if program < loop.states:
        blocks = (V + BV - 1) // BV
        sequence, column = (program // blocks).to(tl.int64), program % blocks * BV
        _carry_state(loop, sequence, head, column, HEADS, GROUPS, K, V, C, BK, BV, ERASES, ROW_DECAYS, PAIRS)
    else:
        if OPERATORS:
            blocks = (K + BV - 1) // BV
            wanted, column = (program - loop.states) // blocks, (program - loop.states) % blocks * BV
            step = tl.load(loop.walk.operators + wanted)
            _carry_operator(loop, step, head, column, HEADS, GROUPS, K, C, BK, BV, ROW_DECAYS)


@triton.jit
def _carry_state(
    loop, sequence, head, column, HEADS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, ERASES: tl.constexpr, ROW_DECAYS: tl.constexpr,
    PAIRS: tl.constexpr,
):  # fmt: skip
    """A sequence's state columns `[K, column : column + BV]`, from its initial to its final state."""
    form, kept = loop.form, loop.kept
    at = head * K * V + column  # of these columns in a state of all heads
    width = V - column
    state = load_rows(kept.initial + sequence * HEADS * K * V + at, 0, K, V, width, BK, BV)
    for number in range(tl.load(loop.walk.walks + sequence), tl.load(loop.walk.walks + sequence + 1)):
        step = loop.walk.steps + number * STEP
        if PAIRS > 0:
            for pair in range(tl.load(step + 3), tl.load(step + 4)):
                room = kept.final + sequence * HEADS * K * V + at
                state = _compose(loop.pairs, pair, state, room, head, at, width, HEADS, K, V, BK, BV, PAIRS)
        row = tl.load(step + 5)
        if row >= 0:
            store_rows(kept.entering + row * HEADS * K * V + at, state, 0, K, V, width, BK, BV)
        end, chunk, row = tl.load(step + 1), tl.load(step + 2), tl.load(step + 6)
        log_decay = tl.zeros([BK], dtype=tl.float64)
        for first in range(tl.load(step), end, C):
            key, erase, start, finish, decay = _chunk(
                loop, chunk, first, end, head, HEADS, GROUPS, K, C, BK, ROW_DECAYS
            )
            log_decay += decay
            query = load_rows(form.query + head // GROUPS * K, first, end, loop.stride.query, K, C, BK).to(state.dtype)
            write = load_rows(form.write + head * V + column, first, end, loop.stride.write, width, C, BV)
            write = write.to(state.dtype)
            read = precise_dot(query, state) * start[:, None]
            if ERASES:
                write -= precise_dot(erase, state) * start[:, None]
                write = precise_dot(load_rows(form.solve + head * C, first, end, HEADS * C, C, C, C), write)
            read += precise_dot(load_rows(form.attention + head * C, first, end, HEADS * C, C, C, C), write)
            store_rows(loop.output + head * V + column, read, first, end, HEADS * V, width, C, BV)
            state = state * tl.exp(decay).to(state.dtype)[:, None]
            state += precise_dot(tl.trans(key), write * finish[:, None])
            chunk += 1
        if not ERASES and row >= 0 and column == 0:
            _store_decay(kept.transitions, row * HEADS + head, log_decay, K, BK, ROW_DECAYS)
    store_rows(kept.final + sequence * HEADS * K * V + at, state, 0, K, V, width, BK, BV)


@triton.jit
def _carry_operator(
    loop, number, head, column, HEADS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, ROW_DECAYS: tl.constexpr,
):  # fmt: skip
    """Columns `[K, column : column + BV]` of a step's transition, from those of I."""
    step = loop.walk.steps + number * STEP
    end, chunk, row = tl.load(step + 1), tl.load(step + 2), tl.load(step + 6)
    dtype = loop.kept.initial.dtype.element_ty
    operator = (tl.arange(0, BK)[:, None] == column + tl.arange(0, BV)[None, :]).to(dtype)
    for first in range(tl.load(step), end, C):
        key, erase, start, finish, decay = _chunk(loop, chunk, first, end, head, HEADS, GROUPS, K, C, BK, ROW_DECAYS)
        erased = precise_dot(erase, operator) * start[:, None]
        erased = precise_dot(load_rows(loop.form.solve + head * C, first, end, HEADS * C, C, C, C), erased)
        operator = operator * tl.exp(decay).to(dtype)[:, None]
        operator -= precise_dot(tl.trans(key), erased * finish[:, None])
        chunk += 1
    store_rows(loop.kept.transitions + (row * HEADS + head) * K * K + column, operator, 0, K, K, K - column, BK, BV)


@triton.jit
def _chunk(
    loop, chunk, first, end, head, HEADS: tl.constexpr, GROUPS: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
    BK: tl.constexpr, ROW_DECAYS: tl.constexpr,
):  # fmt: skip
    """A chunk's keys as it writes and as it erases, `[C, BK]`, their decays from its start and to its end, `[C]`, and
    its log decay, float64 `[BK]`."""
    form = loop.form
    dtype = loop.kept.initial.dtype.element_ty
    own = head // GROUPS * K
    key = load_rows(form.key + own, first, end, loop.stride.key, K, C, BK).to(dtype)
    if ROW_DECAYS:
        start = load_column(form.start_decay + head, first, end, HEADS, C)
        finish = load_column(form.end_decay + head, first, end, HEADS, C)
        erase = key
        decay = tl.load(form.log_decay + chunk * HEADS + head) + tl.zeros([BK], dtype=tl.float64)
    else:
        start, finish = tl.full([C], 1.0, dtype), tl.full([C], 1.0, dtype)
        erase = load_rows(form.erase + own, first, end, loop.stride.erase, K, C, BK).to(dtype)
        decay = load_column(form.log_decay + (chunk * HEADS + head) * K, 0, K, 1, BK)
    return key, erase, start, finish, decay


@triton.jit
def _compose(
    pairs, pair, state, room, head, at, width, HEADS: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """The state behind a cached segment: M·S + state. room: memory of this program's own for a state."""
    own = pair * HEADS + head
    composed = load_rows(pairs.states + pair * HEADS * K * V + at, 0, K, V, width, BK, BV).to(state.dtype)
    row = tl.load(pairs.rows + own)
    if row < 0:
        if PAIRS % 2 == 0:  # scales by channel
            composed += state * load_column(pairs.scales + own * K, 0, K, 1, BK)[:, None]
        else:
            composed += state * tl.load(pairs.scales + own)
    else:
        if PAIRS > 2:  # a matrix does not fit in the registers: some of its columns at a time
            store_rows(room, state, 0, K, V, width, BK, BV)
            tl.debug_barrier()
            for k in range(0, K, 16):
                columns = load_rows(pairs.matrices + row * K * K + k, 0, K, K, K - k, BK, 16)
                composed += precise_dot(columns, load_rows(room + k * V, 0, K - k, V, width, 16, BV))
            tl.debug_barrier()
    return composed


@triton.jit
def _store_decay(pointer, row, log_decay, K: tl.constexpr, BK: tl.constexpr, SCALAR: tl.constexpr):
    """The transition of a run that only decays: one number, or one a channel."""
    channel = tl.arange(0, BK)
    decay = tl.exp(log_decay).to(pointer.dtype.element_ty)
    if SCALAR:
        tl.store(pointer + row + channel, decay, mask=channel < 1)
    else:
        tl.store(pointer + row * K + channel, decay, mask=channel < K)
