"""Mamba2 (SSD): one decay per head and token. k is B, q is C, v is Δ·x and g is Δ·A; B and C are shared by
groups of heads. The skip term D·x is no business of the state and stays with the layer.
"""

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.runs import Runs
from hypic.kernels.scalar_decay import scalar_decay, scalar_decay_step
from hypic.linear.family import LinearFamily, LinearInputs, sample_log_decay, sample_qkv


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
    """Values scaled by Δ, as g is."""
    inputs = sample_qkv(generator, tokens, heads, key_dim, value_dim)
    g = sample_log_decay(generator, tokens, heads[1])
    return replace(inputs, g=g, v=inputs.v * -g.unsqueeze(-1)).to(dtype)


FAMILY = LinearFamily(
    name="mamba2",
    form="scalar",
    decay="token",
    takes_beta=False,
    scan=scan,
    step=step,
    sample=sample,
    source="arXiv 2405.21060",
)
