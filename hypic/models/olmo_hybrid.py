"""OLMo hybrid (`olmo_hybrid`): gated delta net whose write strength may reach 2, which lets states change their sign,
and attention that is normalised behind instead of before, in every fourth layer."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hypic.batch import Batch
from hypic.layers.attention import Attention, AttentionShape
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.conv import ConvWeight
from hypic.layers.decoder import DecoderLayer
from hypic.layers.gated_delta_net import DeltaNetShape, GatedDeltaNet
from hypic.layers.mixer import Layer, Mixer, Rotations, numbered
from hypic.layers.mlp import GatedMLP
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("olmo_hybrid",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
}

_NAMES = Names(
    (
        (r"\.attention_layer_norm\.", ".input_layernorm."),
        (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
        (r"\.linear_attn\.a_proj\.", ".linear_attn.in_proj_a."),
        (r"\.linear_attn\.b_proj\.", ".linear_attn.in_proj_b."),
        (r"\.linear_attn\.g_proj\.", ".linear_attn.in_proj_z."),
        (r"\.linear_attn\.o_proj\.", ".linear_attn.out_proj."),
        (r"\.linear_attn\.o_norm\.", ".linear_attn.norm."),
    )
)
_GATED_NORM_EPS = 1e-5  # of the norm inside the delta net, which the config does not set


class SplitDeltaNet(GatedDeltaNet):
    """q, k and v have projections of their own."""

    def build_projections(self) -> None:
        shape, hidden = self.shape, self.shape.hidden_size
        width, value_width = shape.key_heads * shape.key_dim, shape.value_heads * shape.value_dim
        self.q_proj = nn.Linear(hidden, width, bias=False)
        self.k_proj = nn.Linear(hidden, width, bias=False)
        self.v_proj = nn.Linear(hidden, value_width, bias=False)
        self.conv1d = ConvWeight(shape.conv_channels, shape.conv_width)
        self.build_gates()

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1)
        z = self.in_proj_z(x).view(-1, self.shape.value_heads, self.shape.value_dim)
        return qkv, z, self.in_proj_b(x), self.in_proj_a(x)


class PostNormLayer(nn.Module):
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    def __init__(self, mixer: Attention, mlp: nn.Module, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.self_attn, self.mlp = mixer, mlp
        self.post_attention_layernorm, self.post_feedforward_layernorm = norm(), norm()

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return (self.self_attn,)

    def forward(self, x: Tensor, batch: Batch, rotations: Rotations) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(x, batch, rotations["full"]))
        return x + self.post_feedforward_layernorm(self.mlp(x))  # type: ignore[no-any-return]


def build(config: Any) -> HybridModel:
    """The text model of an OLMo hybrid config. Published models have no positions: rope_theta is None."""
    require(config, hidden_act="silu")
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers: list[Layer] = []
    for kind, number in numbered(config.layer_types):
        mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        if kind == "linear_attention":
            layers.append(DecoderLayer(SplitDeltaNet(number, _delta_net(config)), mlp, norm))
        else:
            layers.append(PostNormLayer(Attention(number, _attention(config), config.rms_norm_eps), mlp, norm))
    rotated = (config.rope_parameters or {}).get("rope_theta") is not None
    positions = Positions(full=RotaryPositions(config) if rotated else None)
    return CausalLM(config, layers, norm(), positions, _NAMES)


def _delta_net(config: Any) -> DeltaNetShape:
    return DeltaNetShape(
        hidden_size=config.hidden_size,
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=_GATED_NORM_EPS,
        write_scale=2.0 if config.linear_allow_neg_eigval else 1.0,
    )


def _attention(config: Any) -> AttentionShape:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return AttentionShape(config.hidden_size, heads, kv_heads, head_dim, config.attention_bias)
