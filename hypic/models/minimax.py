"""MiniMax-Text-01 and MiniMax-M1 (`minimax`): lightning attention without positions, rotary attention in every eighth
layer, experts everywhere; residuals carry the normalised input, scaled."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.attention import Attention, AttentionShape
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.mixer import LinearMemory, Mixer, Rotations, kind_of, numbered
from hypic.layers.mlp import Experts, SparseMoE, TopKRouter
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.linear.family import LinearInputs
from hypic.linear.retnet import FAMILY
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("minimax",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "block_size": 16,
    "linear_attn_alpha_factor": 0.9,
    "linear_attn_beta_factor": 1.2,
    "full_attn_alpha_factor": 1.1,
    "full_attn_beta_factor": 0.8,
    "mlp_alpha_factor": 1.2,
    "mlp_beta_factor": 0.7,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}

_NAMES = Names(
    (
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.w1\.weight$", ".gate_proj.weight"),
        (r"\.w2\.weight$", ".down_proj.weight"),
        (r"\.w3\.weight$", ".up_proj.weight"),
    ),
    unused=r".*\.(slope_rate|query_decay|key_decay|diagonal_decay)$",  # constants that the config gives
)
_NORM_EPS = 1e-6  # of the norm inside lightning attention, which the config does not set


class LightningAttention(nn.Module):
    """q, k and v are activated, interleaved head by head in one matrix, and neither scaled nor rotated."""

    def __init__(self, layer: int, index: int, config: Any) -> None:
        super().__init__()
        heads, head_dim = config.num_attention_heads, _head_dim(config)
        self.layer, self.heads = layer, heads
        self.memory = LinearMemory(FAMILY, heads, head_dim, head_dim)
        self.log_decay = log_decay(heads, index, config.num_hidden_layers)
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * heads * head_dim, bias=False)
        self.output_gate = nn.Linear(config.hidden_size, heads * head_dim, bias=False)
        self.norm = RMSNorm(heads * head_dim, _NORM_EPS)
        self.out_proj = nn.Linear(heads * head_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary = None) -> Tensor:
        q, k, v = F.silu(self.qkv_proj(x)).view(len(x), self.heads, -1).chunk(3, dim=-1)
        inputs = LinearInputs(q, k, v, torch.tensor(self.log_decay, device=x.device))
        output = self.norm(batch.recur(self.layer, FAMILY, inputs).flatten(1)).to(x.dtype)
        return self.out_proj(torch.sigmoid(self.output_gate(x)) * output)  # type: ignore[no-any-return]


class PostNormLayer(nn.Module):
    """y = norm(x), x = a·y + b·mixer(y), and so again for the experts: the residual is taken behind the norm."""

    def __init__(self, mixer: Mixer, norm: Callable[[], nn.Module], config: Any) -> None:
        super().__init__()
        self.kind = kind_of(mixer)
        self.self_attn = mixer
        router = TopKRouter(config.hidden_size, config.num_local_experts, config.num_experts_per_tok, renormalise=True)
        self.mlp = SparseMoE(router, Experts(config.hidden_size, config.intermediate_size, config.num_local_experts))
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        name = f"{self.kind}_attn"
        self.mixer_scales = (getattr(config, f"{name}_alpha_factor"), getattr(config, f"{name}_beta_factor"))
        self.mlp_scales = (config.mlp_alpha_factor, config.mlp_beta_factor)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return (self.self_attn,)

    def forward(self, x: Tensor, batch: Batch, rotations: Rotations) -> Tensor:
        (kept, added), (mlp_kept, mlp_added) = self.mixer_scales, self.mlp_scales
        x = self.input_layernorm(x)
        x = x * kept + self.self_attn(x, batch, rotations[self.kind]) * added
        x = self.post_attention_layernorm(x)
        return x * mlp_kept + self.mlp(x) * mlp_added  # type: ignore[no-any-return]


def build(config: Any) -> HybridModel:
    """The text model of a MiniMax config."""
    require(config, hidden_act="silu", sliding_window=None)
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = []
    for index, (kind, number) in enumerate(numbered(config.layer_types)):
        linear = kind == "linear_attention"
        mixer = LightningAttention(number, index, config) if linear else Attention(number, _attention(config))
        layers.append(PostNormLayer(mixer, norm, config))
    return CausalLM(config, layers, norm(), Positions(full=RotaryPositions(config)), _NAMES)


def log_decay(heads: int, index: int, layers: int) -> list[float]:
    """Log decay of each head in layer `index`, weaker with depth; slopes are 2^(-8/H), 2^(-16/H), …"""
    depth = 1 - index / (layers - 1 + 1e-5) + 1e-5
    return [-(2.0 ** (-8.0 * (head + 1) / heads)) * depth for head in range(heads)]


def _head_dim(config: Any) -> int:
    return config.head_dim or config.hidden_size // config.num_attention_heads  # type: ignore[no-any-return]


def _attention(config: Any) -> AttentionShape:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return AttentionShape(config.hidden_size, heads, kv_heads, _head_dim(config))
