"""Qwen3.5 text models (`qwen3_5`): gated delta net layers, and gated full attention in every fourth."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from hypic.layers.attention import GatedAttention
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.gated_delta_net import DeltaNetShape, GatedDeltaNet
from hypic.layers.mixer import numbered
from hypic.layers.mlp import GatedMLP
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.contract import HybridModel

MODEL_TYPES = ("qwen3_5", "qwen3_5_text")
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
    },
}

_NAMES = Names(((r"^model\.language_model\.", "model."),), unused=r"mtp\.|model\.visual\.|visual\.")


def text_model(
    config: Any,
    mixer: Callable[[int, DeltaNetShape], GatedDeltaNet] = GatedDeltaNet,
    mlp: Callable[[Any, int], nn.Module] | None = None,
) -> HybridModel:
    """The whole text model. `mixer` and `mlp` are what the sibling architectures change."""
    shape = _delta_net_shape(config)
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps, 1.0)
    layers = []
    for index, (kind, number) in enumerate(numbered(config.layer_types)):
        feed_forward = mlp(config, index) if mlp else GatedMLP(config.hidden_size, config.intermediate_size)
        token_mixer = mixer(number, shape) if kind == "linear_attention" else _attention(number, config)
        layers.append(DecoderLayer(token_mixer, feed_forward, norm))
    return CausalLM(config, layers, norm(), Positions(full=RotaryPositions(config)), _NAMES)


def build(config: Any) -> HybridModel:
    """The dense text model of a Qwen3.5 config."""
    return text_model(config)


def _delta_net_shape(config: Any) -> DeltaNetShape:
    return DeltaNetShape(
        hidden_size=config.hidden_size,
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
    )


def _attention(layer: int, config: Any) -> GatedAttention:
    return GatedAttention(
        layer,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.rms_norm_eps,
        config.attention_bias,
    )
