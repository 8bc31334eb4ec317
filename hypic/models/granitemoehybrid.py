"""Granite 4 hybrid (`granitemoehybrid`): Mamba2 layers, a few of attention, mostly without positions, and experts
beside a shared feed-forward layer."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hypic.layers.attention import Attention, AttentionShape
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.mamba2 import Mamba2
from hypic.layers.mixer import numbered
from hypic.layers.mlp import Experts, TopKRouter
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.bamba import mamba2_shape
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("granitemoehybrid",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 32,
    "shared_intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 24,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
    "logits_scaling": 2.0,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
}

_NAMES = Names(
    (
        (r"\.block_sparse_moe\.input_linear\.weight$", ".mlp.experts.gate_up_proj"),
        (r"\.block_sparse_moe\.output_linear\.weight$", ".mlp.experts.down_proj"),
        (r"\.block_sparse_moe\.router\.layer\.", ".mlp.router."),
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.shared_mlp\.", ".mlp.shared_mlp."),
        (r"\.mamba\.", ".linear_attn."),
    )
)


class FusedMLP(nn.Module):
    """The gated MLP with gate and up in one matrix."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.input_linear = nn.Linear(hidden_size, 2 * intermediate_size, bias=False)
        self.output_linear = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.input_linear(x).chunk(2, dim=-1)
        return self.output_linear(F.silu(gate) * up)  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """The shared MLP, plus experts where there are any. Softmax over the k largest logits is the renormalised softmax
    over all."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.shared_mlp = FusedMLP(config.hidden_size, config.shared_intermediate_size)
        if config.num_local_experts:
            size = (config.hidden_size, config.num_local_experts)
            self.router = TopKRouter(*size, config.num_experts_per_tok, renormalise=True)
            self.experts = Experts(config.hidden_size, config.intermediate_size, config.num_local_experts)

    def forward(self, x: Tensor) -> Tensor:
        shared: Tensor = self.shared_mlp(x)
        return shared + self.experts(x, *self.router(x)) if hasattr(self, "experts") else shared


def build(config: Any) -> HybridModel:
    """The text model of a Granite hybrid config."""
    require(config, hidden_act="silu")
    rotary = RotaryPositions(config) if config.position_embedding_type == "rope" else None
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = []
    for kind, number in numbered(config.layer_types):
        linear = kind == "linear_attention"
        mixer = Mamba2(number, mamba2_shape(config)) if linear else Attention(number, _attention(config))
        layers.append(DecoderLayer(mixer, FeedForward(config), norm, residual_scale=config.residual_multiplier))
    return CausalLM(
        config,
        layers,
        norm(),
        Positions(full=rotary),
        _NAMES,
        embedding_scale=config.embedding_multiplier,
        logit_scale=1.0 / config.logits_scaling,
    )


def _attention(config: Any) -> AttentionShape:
    return AttentionShape(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        config.attention_bias,
        config.attention_multiplier,
    )
