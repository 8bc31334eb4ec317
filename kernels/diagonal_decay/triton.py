"""One decay per key channel in Triton: two launches, one that prepares every chunk, one that carries the states."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import Pair, ScanResult
from hypic.kernels.chunk_scan.triton_channels import channel_form
from hypic.kernels.chunk_scan.triton_scan import chunk_scan
from hypic.kernels.chunk_scan.triton_step import recurrent_step
from hypic.kernels.diagonal_decay.naive import check
from hypic.kernels.runs import Runs


@torch.no_grad()
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
    """As in `naive.py`."""
    check(q, k, v, g, runs, initial_states)
    return chunk_scan(
        channel_form(q, k, v, g, None, runs, initial_states.dtype),
        runs,
        initial_states,
        pairs=pairs,
        want_entering=want_entering,
        want_transition=want_transition,
    )


def diagonal_decay_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """As in `naive.py`."""
    return recurrent_step(q, k, v, g, None, states)
