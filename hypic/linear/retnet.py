"""RetNet and Lightning attention: the decay is a constant of each head.

Keys may be rotated (Ring and Bailing rotate them); `hypic.linear.rotation` moves a segment's state to where
the segment stands.
"""

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.runs import Runs
from hypic.kernels.scalar_decay import scalar_decay, scalar_decay_step
from hypic.linear.family import LinearFamily, LinearInputs, sample_qkv


def scan(inputs: LinearInputs, runs: Runs, initial_states: Tensor, **options: Unpack[ScanOptions]) -> ScanResult:
    """Prefill, transitions `[HV]`."""
    return scalar_decay(inputs.q, inputs.k, inputs.v, inputs.gate("g"), runs, initial_states, **options)


def step(inputs: LinearInputs, states: Tensor) -> tuple[Tensor, Tensor]:
    """Decoding, one token for each state."""
    return scalar_decay_step(inputs.q, inputs.k, inputs.v, inputs.gate("g"), states)


def sample(
    generator: torch.Generator,
    tokens: int,
    heads: tuple[int, int],
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype = torch.float32,
) -> LinearInputs:
    """Decays of RetNet, 1 - 2^-5 to 1 - 2^-12 over the heads; g is `[HV]`."""
    inputs = sample_qkv(generator, tokens, heads, key_dim, value_dim)
    decay = 1 - 2 ** -torch.linspace(5, 12, heads[1], dtype=torch.float64)
    return replace(inputs, g=decay.log()).to(dtype)


FAMILY = LinearFamily(
    name="retnet",
    form="scalar",
    decay="head",
    takes_beta=False,
    scan=scan,
    step=step,
    sample=sample,
    source="arXiv 2307.08621, 2401.04658",
)
