"""Gated linear attention, one decay per key channel: S_t = diag(a_t) S_{t-1} + k vᵀ and o_t = q_tᵀ S_t
(GLA, arXiv 2312.06635, eq. 3)."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.chunking import channel_decays, check_inputs, to_chunks, to_value_heads
from hypic.kernels.chunk_scan.naive import Chunks, Pair, ScanResult, chunk_scan
from hypic.kernels.chunk_scan.step import recurrent_step
from hypic.kernels.runs import Runs


def diagonal_decay(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    runs: Runs,
    initial_states: Tensor,
    *,
    pairs: Mapping[int, Sequence[Pair]] | None = None,
    want_entering: Collection[int] = (),
    want_transition: Collection[int] = (),
) -> ScanResult:
    """Outputs, states and transitions `[HV, K]` of packed runs, in one pass.

    q, k: `[T, H, K]`, already scaled. v: `[T, HV, V]`, HV a multiple of H. g: `[T, HV, K]` log decay, <= 0.
    initial_states: `[N, HV, K, V]`, whose dtype is that of the computation. The rest as in `chunk_scan`.
    Raises ValueError where shapes disagree.
    """
    check(q, k, v, g, runs, initial_states)
    chunks = _chunk_form(q, k, v, g, runs, initial_states.dtype)
    return chunk_scan(
        chunks,
        runs,
        initial_states,
        pairs=pairs,
        want_entering=want_entering,
        want_transition=want_transition,
    )


def diagonal_decay_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each of N sequences: q, k `[N, H, K]`, v `[N, HV, V]`, g `[N, HV, K]`, states
    `[N, HV, K, V]`. Returns the output `[N, HV, V]` and the new states, in the dtype of `states`."""
    return recurrent_step(q, k, v, g, None, states)


def check(q: Tensor, k: Tensor, v: Tensor, g: Tensor, runs: Runs, initial_states: Tensor) -> None:
    """Raise ValueError where shapes disagree."""
    check_inputs(q, k, v, runs, initial_states)
    if g.shape != (*v.shape[:2], k.shape[2]):
        raise ValueError(f"g must be {(*v.shape[:2], k.shape[2])}; found {tuple(g.shape)}")


@torch.no_grad()
def _chunk_form(q: Tensor, k: Tensor, v: Tensor, g: Tensor, runs: Runs, dtype: torch.dtype) -> Chunks:
    q, k, v, g = (to_chunks(x.to(dtype), runs).contiguous() for x in (q, k, v, g))
    q, k = (to_value_heads(x, v.shape[1]) for x in (q, k))
    decays = channel_decays([q], k, g)
    return Chunks(
        query=q * decays.from_start,
        write=v,
        erase=None,
        key=k * decays.to_end,
        attention=decays.products[0],
        log_decay=decays.log_decay,
    )
