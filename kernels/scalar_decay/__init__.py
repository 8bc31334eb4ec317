"""Linear attention with one decay per head, in the form that suits the device of its tensors."""

from collections.abc import Callable
from typing import Unpack

from torch import Tensor

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.dispatch import choose
from hypic.kernels.runs import Runs
from hypic.kernels.scalar_decay import naive


def scalar_decay(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, runs: Runs, initial_states: Tensor, **options: Unpack[ScanOptions]
) -> ScanResult:
    """As `naive.scalar_decay`."""
    return choose(naive.scalar_decay, _scan, v.device)(q, k, v, g, runs, initial_states, **options)


def scalar_decay_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """As `naive.scalar_decay_step`."""
    return choose(naive.scalar_decay_step, _step, v.device)(q, k, v, g, states)


def _scan() -> Callable[..., ScanResult]:
    from hypic.kernels.scalar_decay import triton

    return triton.scalar_decay


def _step() -> Callable[..., tuple[Tensor, Tensor]]:
    from hypic.kernels.scalar_decay import triton

    return triton.scalar_decay_step
