"""Gated linear attention: one decay per key channel and token."""

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hypic.kernels.chunk_scan.naive import ScanOptions, ScanResult
from hypic.kernels.diagonal_decay import diagonal_decay, diagonal_decay_step
from hypic.kernels.runs import Runs
from hypic.linear.family import LinearFamily, LinearInputs, sample_qkv


def scan(inputs: LinearInputs, runs: Runs, initial_states: Tensor, **options: Unpack[ScanOptions]) -> ScanResult:
    """Prefill, transitions `[HV, K]`."""
    return diagonal_decay(inputs.q, inputs.k, inputs.v, inputs.gate("g"), runs, initial_states, **options)


def step(inputs: LinearInputs, states: Tensor) -> tuple[Tensor, Tensor]:
    """Decoding, one token for each state."""
    return diagonal_decay_step(inputs.q, inputs.k, inputs.v, inputs.gate("g"), states)


def sample(
    generator: torch.Generator,
    tokens: int,
    heads: tuple[int, int],
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype = torch.float32,
) -> LinearInputs:
    """Gates of GLA, log sigmoid of a normal, divided by 16."""
    inputs = sample_qkv(generator, tokens, heads, key_dim, value_dim)
    gate = torch.randn(tokens, heads[1], key_dim, generator=generator, dtype=torch.float64)
    return replace(inputs, g=logsigmoid(gate) / 16).to(dtype)


FAMILY = LinearFamily(
    name="gla",
    form="diagonal",
    decay="channel",
    takes_beta=False,
    scan=scan,
    step=step,
    sample=sample,
    source="arXiv 2312.06635",
)
