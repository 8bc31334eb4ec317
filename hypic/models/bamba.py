"""Bamba (`bamba`): Mamba2 layers, and grouped-query attention with half of each head rotated in a few."""

from functools import partial
from typing import Any

from hypic.layers.attention import Attention, AttentionShape
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.mamba2 import Mamba2, Mamba2Shape
from hypic.layers.mixer import numbered
from hypic.layers.mlp import GatedMLP
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("bamba",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
    "attn_layer_indices": [1, 4],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

_NAMES = Names(
    (
        (r"\.final_layernorm\.", ".norm."),
        (r"\.feed_forward\.", ".mlp."),
        (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."),
        (r"\.mamba\.", ".linear_attn."),
    )
)


def build(config: Any) -> HybridModel:
    """The text model of a Bamba config."""
    require(config, hidden_act="silu")
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = []
    for kind, number in numbered(config.layers_block_type):
        linear = kind == "linear_attention"
        mixer = Mamba2(number, mamba2_shape(config)) if linear else Attention(number, _attention(config))
        mlp = GatedMLP(config.hidden_size, config.intermediate_size, config.mlp_bias)
        layers.append(DecoderLayer(mixer, mlp, norm))
    return CausalLM(config, layers, norm(), Positions(full=RotaryPositions(config)), _NAMES)


def mamba2_shape(config: Any) -> Mamba2Shape:
    """The mixer of a config with Bamba's field names, which Granite hybrid and Falcon-H1 share."""
    return Mamba2Shape(
        hidden_size=config.hidden_size,
        heads=config.mamba_n_heads,
        head_dim=config.mamba_d_head,
        groups=config.mamba_n_groups,
        state_dim=config.mamba_d_state,
        conv_width=config.mamba_d_conv,
        eps=config.rms_norm_eps,
        conv_bias=config.mamba_conv_bias,
        in_bias=config.mamba_proj_bias,
        out_bias=config.mamba_proj_bias,
        step_limits=tuple(config.time_step_limit),
    )


def _attention(config: Any) -> AttentionShape:
    return AttentionShape(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        config.attention_bias,
    )
