"""Kimi delta attention (KDA): the delta rule with one decay per key channel and token (Kimi-Linear)."""

from dataclasses import replace

import torch

from hypic.linear.family import LinearFamily, LinearInputs, sample_log_decay, sample_qkv, sample_write_strength
from hypic.linear.gated_delta_net import scan, step


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
    g = sample_log_decay(generator, tokens, heads[1], key_dim)
    return replace(inputs, g=g, beta=sample_write_strength(generator, tokens, heads[1])).to(dtype)


FAMILY = LinearFamily(
    name="kda",
    form="dense",
    decay="channel",
    takes_beta=True,
    scan=scan,
    step=step,
    sample=sample,
    source="arXiv 2510.26692",
)
