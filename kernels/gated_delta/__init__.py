"""The gated delta rule, in the form that suits the device of its tensors."""

from collections.abc import Callable
from typing import Unpack

from torch import Tensor

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.dispatch import choose
from hypic.kernels.gated_delta import naive
from hypic.kernels.runs import Runs


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    runs: Runs,
    initial_states: Tensor,
    **options: Unpack[ScanOptions],
) -> ScanResult:
    """As `naive.gated_delta`."""
    return choose(naive.gated_delta, _scan, v.device)(q, k, v, g, beta, runs, initial_states, **options)


def gated_delta_step(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None, beta: Tensor, states: Tensor
) -> tuple[Tensor, Tensor]:
    """As `naive.gated_delta_step`."""
    return choose(naive.gated_delta_step, _step, v.device)(q, k, v, g, beta, states)


def _scan() -> Callable[..., ScanResult]:
    from hypic.kernels.gated_delta import triton

    return triton.gated_delta


def _step() -> Callable[..., tuple[Tensor, Tensor]]:
    from hypic.kernels.gated_delta import triton

    return triton.gated_delta_step
