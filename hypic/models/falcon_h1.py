"""Falcon-H1 (`falcon_h1`): every layer runs Mamba2 and attention side by side, with a fixed scale on most paths."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch
from hypic.layers.attention import Attention, AttentionShape
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.mamba2 import Mamba2, Mamba2Shape
from hypic.layers.mixer import Mixer, Rotations
from hypic.layers.mlp import GatedMLP
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.bamba import mamba2_shape
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("falcon_h1",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_d_ssm": 96,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
    "mamba_rms_norm": False,
    "embedding_multiplier": 5.0,
    "lm_head_multiplier": 0.5,
    "key_multiplier": 0.6,
    "mlp_multipliers": [0.9, 0.7],
    "ssm_multipliers": [0.5, 0.7, 1.2, 0.8, 0.9],
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.9,
    "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 1.1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

_NAMES = Names(((r"\.final_layernorm\.", ".norm."),))


class ScaledMLP(GatedMLP):
    """The gated MLP with a scale on the gate and one on the result."""

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.intermediate_size, config.mlp_bias)
        self.gate_scale, self.down_scale = config.mlp_multipliers

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.silu(self.gate_proj(x) * self.gate_scale) * self.up_proj(x)
        return self.down_proj(hidden) * self.down_scale  # type: ignore[no-any-return]


class ParallelLayer(nn.Module):
    """x + mamba(norm(x)) + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Any, layer: int, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.mamba = Mamba2(layer, _mamba(config))
        self.self_attn = Attention(layer, _attention(config))
        self.feed_forward = ScaledMLP(config)
        self.input_layernorm, self.pre_ff_layernorm = norm(), norm()
        self.linear_scales = (config.ssm_in_multiplier, config.ssm_out_multiplier)
        self.full_scales = (config.attention_in_multiplier, config.attention_out_multiplier)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return self.mamba, self.self_attn

    def forward(self, x: Tensor, batch: Batch, rotations: Rotations) -> Tensor:
        normed = self.input_layernorm(x)
        (linear_in, linear_out), (full_in, full_out) = self.linear_scales, self.full_scales
        linear = self.mamba(normed * linear_in, batch, rotations["linear"]) * linear_out
        full = self.self_attn(normed * full_in, batch, rotations["full"]) * full_out
        x = x + linear + full
        return x + self.feed_forward(self.pre_ff_layernorm(x))  # type: ignore[no-any-return]


def build(config: Any) -> HybridModel:
    """The text model of a Falcon-H1 config."""
    require(config, hidden_act="silu")
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    return CausalLM(
        config,
        [ParallelLayer(config, layer, norm) for layer in range(config.num_hidden_layers)],
        norm(),
        Positions(full=RotaryPositions(config)),
        _NAMES,
        embedding_scale=config.embedding_multiplier,
        logit_scale=config.lm_head_multiplier,
    )


def _mamba(config: Any) -> Mamba2Shape:
    shape = replace(mamba2_shape(config), out_bias=config.projectors_bias, scales=tuple(config.ssm_multipliers))
    if not config.mamba_rms_norm:
        return replace(shape, norm="none")
    return replace(shape, norm="before_gate") if config.mamba_norm_before_gate else shape


def _attention(config: Any) -> AttentionShape:
    """Keys have a scale, which the scores may as well have: rotation and dot product are linear."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return AttentionShape(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        head_dim,
        config.attention_bias,
        scale=head_dim**-0.5 * config.key_multiplier,
    )
