"""The gated delta rule in Triton: two launches, one that prepares every chunk, one that carries the states."""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import Pair, ScanResult
from hypic.kernels.chunk_scan.triton_channels import channel_form
from hypic.kernels.chunk_scan.triton_forms import scalar_form
from hypic.kernels.chunk_scan.triton_scan import chunk_scan
from hypic.kernels.chunk_scan.triton_step import recurrent_step
from hypic.kernels.gated_delta.naive import check
from hypic.kernels.runs import Runs


@torch.no_grad()
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
    """As in `naive.py`."""
    check(q, k, v, g, beta, runs, initial_states)
    gate = beta.new_zeros(beta.shape[1]) if g is None else g
    make_form = channel_form if gate.ndim == 3 else scalar_form
    form = make_form(q, k, v, gate, beta, runs, initial_states.dtype)
    return chunk_scan(
        form,
        runs,
        initial_states,
        pairs=pairs,
        want_entering=want_entering,
        want_transition=want_transition,
    )


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    """As in `naive.py`."""
    return recurrent_step(q, k, v, g, beta, states)
