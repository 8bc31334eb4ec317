"""Gated DeltaNet (GDN): the delta rule with one decay per head and token (Qwen3-Next, Qwen3.5,
OLMo-hybrid)."""

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.gated_delta import gated_delta, gated_delta_step
from hypic.kernels.runs import Runs
from hypic.linear.family import (
    LinearFamily,
    LinearInputs,
    sample_log_decay,
    sample_qkv,
    sample_write_strength,
)


def scan(inputs: LinearInputs, runs: Runs, initial_states: Tensor, **options: Unpack[ScanOptions]) -> ScanResult:
    """Prefill, transitions `[HV, K, K]`."""
    return gated_delta(
        inputs.q, inputs.k, inputs.v, inputs.gate("g"), inputs.gate("beta"), runs, initial_states, **options
    )


def step(inputs: LinearInputs, states: Tensor) -> tuple[Tensor, Tensor]:
    """Decoding, one token for each state."""
    return gated_delta_step(inputs.q, inputs.k, inputs.v, inputs.gate("g"), inputs.gate("beta"), states)


def sample(
    generator: torch.Generator,
    tokens: int,
    heads: tuple[int, int],
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype = torch.float32,
) -> LinearInputs:
    """Write strengths and decays of a trained layer."""
    inputs = sample_qkv(generator, tokens, heads, key_dim, value_dim)
    g = sample_log_decay(generator, tokens, heads[1])
    return replace(inputs, g=g, beta=sample_write_strength(generator, tokens, heads[1])).to(dtype)


FAMILY = LinearFamily(
    name="gated_delta_net",
    form="dense",
    decay="token",
    takes_beta=True,
    scan=scan,
    step=step,
    sample=sample,
    source="arXiv 2412.06464",
)
