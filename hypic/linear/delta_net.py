"""DeltaNet: the delta rule without decay. T does not fade, so a segment's operator matters at any
distance."""

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.gated_delta import gated_delta, gated_delta_step
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs, sample_qkv, sample_write_strength


def scan(inputs: LinearInputs, runs: Runs, initial_states: Tensor, **options: Unpack[ScanOptions]) -> ScanResult:
    """Prefill, transitions `[HV, K, K]`."""
    return gated_delta(inputs.q, inputs.k, inputs.v, None, inputs.gate("beta"), runs, initial_states, **options)


def step(inputs: LinearInputs, states: Tensor) -> tuple[Tensor, Tensor]:
    """Decoding, one token for each state."""
    return gated_delta_step(inputs.q, inputs.k, inputs.v, None, inputs.gate("beta"), states)


def sample(
    generator: torch.Generator,
    tokens: int,
    heads: tuple[int, int],
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype = torch.float32,
) -> LinearInputs:
    """Write strengths of a trained layer."""
    inputs = sample_qkv(generator, tokens, heads, key_dim, value_dim)
    beta = sample_write_strength(generator, tokens, heads[1])
    return replace(inputs, beta=beta).to(dtype)


FAMILY = LinearFamily(
    name="delta_net",
    form="dense",
    decay="none",
    takes_beta=True,
    scan=scan,
    step=step,
    sample=sample,
    source="arXiv 2406.06484",
)
