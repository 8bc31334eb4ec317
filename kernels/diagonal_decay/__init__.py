"""Linear attention with one decay per key channel, in the form that suits the device of its tensors."""

from collections.abc import Callable
from typing import Unpack

from torch import Tensor

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.diagonal_decay import naive
from hypic.kernels.dispatch import choose
from hypic.kernels.runs import Runs


def diagonal_decay(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, runs: Runs, initial_states: Tensor, **options: Unpack[ScanOptions]
) -> ScanResult:
    """As `naive.diagonal_decay`."""
    return choose(naive.diagonal_decay, _scan, v.device)(q, k, v, g, runs, initial_states, **options)


def diagonal_decay_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """As `naive.diagonal_decay_step`."""
    return choose(naive.diagonal_decay_step, _step, v.device)(q, k, v, g, states)


def _scan() -> Callable[..., ScanResult]:
    from hypic.kernels.diagonal_decay import triton

    return triton.diagonal_decay


def _step() -> Callable[..., tuple[Tensor, Tensor]]:
    from hypic.kernels.diagonal_decay import triton

    return triton.diagonal_decay_step
