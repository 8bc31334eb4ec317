"""Chunk form of the gated delta rule, S_t = A_t S_{t-1} + β k vᵀ, in three families:

    DeltaNet   A_t = I - β k kᵀ              arXiv 2406.06484
    GDN        A_t = a (I - β k kᵀ)          arXiv 2412.06464, eq. 10
    KDA        A_t = (I - β k kᵀ) diag(a)    arXiv 2510.26692, eq. 1

Within a chunk the writes X solve (I + L)·X = β(V - ΓK·S), with L strictly lower triangular (the WY, or UT,
transform). The residual R = V - ΓK·S belongs to the shared loop; X = (I + L)⁻¹β·R is folded into the two
matrices that the loop applies to R.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.chunking import (
    channel_decays,
    check_inputs,
    group_product,
    scalar_decays,
    to_chunks,
    to_value_heads,
)
from hypic.kernels.chunk_scan.naive import Chunks, Pair, ScanResult, chunk_scan
from hypic.kernels.chunk_scan.step import recurrent_step
from hypic.kernels.runs import Runs


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    runs: Runs,
    initial_states: Tensor,
    *,
    pairs: Mapping[int, Sequence[Pair]] | None = None,
    want_entering: Collection[int] = (),
    want_transition: Collection[int] = (),
) -> ScanResult:
    """Outputs, states and transition operators `[HV, K, K]` of packed runs, in one pass.

    q, k: `[T, H, K]`, already normalised and scaled. v: `[T, HV, V]`, HV a multiple of H. g: log decay, <=
    0, `[T, HV]` (GDN), `[T, HV, K]` (KDA) or None (DeltaNet). beta: `[T, HV]`. initial_states: `[N, HV, K,
    V]`, whose dtype is that of the computation. The rest as in `chunk_scan`. Raises ValueError where shapes
    disagree.
    """
    check(q, k, v, g, beta, runs, initial_states)
    form = _channel_form if g is not None and g.ndim == 3 else _scalar_form
    gate = torch.zeros_like(beta) if g is None else g
    chunks = form(q, k, v, gate, beta, runs, initial_states.dtype)
    return chunk_scan(
        chunks,
        runs,
        initial_states,
        pairs=pairs,
        want_entering=want_entering,
        want_transition=want_transition,
    )


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    """One token for each of N sequences: q, k `[N, H, K]`, v `[N, HV, V]`, g `[N, HV]`, `[N, HV, K]` or
    None, beta `[N, HV]`, states `[N, HV, K, V]`. Returns the output `[N, HV, V]` and the new states, in the
    dtype of `states`."""
    return recurrent_step(q, k, v, g, beta, states)


def check(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, runs: Runs, initial_states: Tensor) -> None:
    """Raise ValueError where shapes disagree."""
    check_inputs(q, k, v, runs, initial_states)
    tokens, heads, key_dim = v.shape[0], v.shape[1], k.shape[2]
    allowed = ((tokens, heads), (tokens, heads, key_dim))
    if g is not None and g.shape not in allowed:
        raise ValueError(f"g must be {allowed[0]}, {allowed[1]} or None; found {tuple(g.shape)}")
    if beta.shape != allowed[0]:
        raise ValueError(f"beta must be {allowed[0]}; found {tuple(beta.shape)}")


@torch.no_grad()
def _scalar_form(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, runs: Runs, dtype: torch.dtype) -> Chunks:
    q, k, v = (to_chunks(x.to(dtype), runs).contiguous() for x in (q, k, v))
    log_decay = to_chunks(g.double().unsqueeze(-1), runs).squeeze(-1)
    from_start, to_end, between, total = scalar_decays(log_decay, dtype)

    solve = _solve(group_product(k @ k.mT, between), to_chunks(beta.to(dtype).unsqueeze(-1), runs))
    attention = group_product(q @ k.mT, between).tril_()
    return Chunks(
        query=group_product(q, from_start),
        write=v,
        erase=group_product(k, from_start),
        key=solve.mT @ group_product(k, to_end),
        attention=attention @ solve,
        log_decay=total,
    )


@torch.no_grad()
def _channel_form(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, runs: Runs, dtype: torch.dtype) -> Chunks:
    q, k, v, g = (to_chunks(x.to(dtype), runs).contiguous() for x in (q, k, v, g))
    q, k = (to_value_heads(x, v.shape[1]) for x in (q, k))
    decays = channel_decays([q, k], k, g)
    attention, similarity = decays.products

    solve = _solve(similarity, to_chunks(beta.to(dtype).unsqueeze(-1), runs))
    return Chunks(
        query=q * decays.from_start,
        write=v,
        erase=k * decays.from_start,
        key=solve.mT @ (k * decays.to_end),
        attention=attention @ solve,
        log_decay=decays.log_decay,
    )


def _solve(similarity: Tensor, beta: Tensor) -> Tensor:
    """(I + L)⁻¹β, `[M, HV, C, C]`, where L is the strict lower triangle of β·similarity; `similarity` is
    overwritten. beta: `[M, HV, C, 1]`."""
    system = similarity.mul_(beta)
    identity = torch.eye(system.shape[-1], dtype=system.dtype, device=system.device).expand_as(system)
    inverse: Tensor = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True)
    return inverse * beta.mT
