"""Linear attention with one decay per head, S_t = a_t S_{t-1} + k vᵀ and o_t = q_tᵀ S_t.

RetNet (arXiv 2307.08621, eq. 6) and Lightning (arXiv 2401.04658): the decay is a constant of the head. Mamba2
(arXiv 2405.21060, eq. 16 with scalar A): it depends on the token; k is B, q is C, v is Δ·x and g is Δ·A.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.chunking import check_inputs, group_product, scalar_decays, to_chunks
from hypic.kernels.chunk_scan.naive import Chunks, Pair, ScanResult, chunk_scan
from hypic.kernels.chunk_scan.step import recurrent_step
from hypic.kernels.runs import Runs


def scalar_decay(
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
    """Outputs, states and transitions `[HV]` of packed runs, in one pass.

    q, k: `[T, H, K]`, already scaled. v: `[T, HV, V]`, HV a multiple of H. g: log decay <= 0, `[HV]`
    constant or `[T, HV]`. initial_states: `[N, HV, K, V]`, whose dtype is that of the computation. The rest
    as in `chunk_scan`. Raises ValueError where shapes disagree.
    """
    check(q, k, v, g, runs, initial_states)
    chunks = _chunk_form(q, k, v, g.expand(v.shape[:2]), runs, initial_states.dtype)
    return chunk_scan(
        chunks,
        runs,
        initial_states,
        pairs=pairs,
        want_entering=want_entering,
        want_transition=want_transition,
    )


def scalar_decay_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each of N sequences: q, k `[N, H, K]`, v `[N, HV, V]`, g `[HV]` or `[N, HV]`, states
    `[N, HV, K, V]`. Returns the output `[N, HV, V]` and the new states, in the dtype of `states`."""
    return recurrent_step(q, k, v, g, None, states)


def check(q: Tensor, k: Tensor, v: Tensor, g: Tensor, runs: Runs, initial_states: Tensor) -> None:
    """Raise ValueError where shapes disagree."""
    check_inputs(q, k, v, runs, initial_states)
    if g.shape not in (v.shape[1:2], v.shape[:2]):
        raise ValueError(f"g must be {tuple(v.shape[1:2])} or {tuple(v.shape[:2])}; found {tuple(g.shape)}")


@torch.no_grad()
def _chunk_form(q: Tensor, k: Tensor, v: Tensor, g: Tensor, runs: Runs, dtype: torch.dtype) -> Chunks:
    q, k, v = (to_chunks(x.to(dtype), runs).contiguous() for x in (q, k, v))
    decays = to_chunks(g.double().unsqueeze(-1), runs).squeeze(-1)
    from_start, to_end, between, log_decay = scalar_decays(decays, dtype)
    return Chunks(
        query=group_product(q, from_start),
        write=v,
        erase=None,
        key=group_product(k, to_end),
        attention=group_product(q @ k.mT, between).tril_(),
        log_decay=log_decay,
    )
