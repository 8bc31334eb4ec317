"""Ring-mini-linear-2.0 and Ring-flash-linear-2.0 (`bailing_moe_linear`): lightning attention with rotated keys, grouped
attention at the end of each group of layers, and sigmoid-routed experts (arXiv 2510.19338).

transformers has no such model; fields and names of tensors are those of the published checkpoints.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from hypic.batch import Batch, Rotary
from hypic.kernels.registry import ROTATE
from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.mixer import AttentionMemory, LinearMemory, numbered
from hypic.layers.mlp import Experts, GatedMLP, SharedExpertsMoE, SigmoidRouter
from hypic.layers.norm import GroupRMSNorm, RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.linear.family import LinearInputs
from hypic.linear.retnet import FAMILY
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("bailing_moe_linear",)
TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "layer_group_size": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "group_norm_size": 4,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "first_k_dense_replace": 1,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
}

_RENAMES = (
    (r"^model\.word_embeddings\.", "model.embed_tokens."),
    (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
)


class Config(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The published fields, with their published defaults."""

    model_type = "bailing_moe_linear"

    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int | None = 128
    hidden_act: str = "silu"
    use_qkv_bias: bool = False
    use_bias: bool = False
    use_qk_norm: bool = True
    linear_silu: bool = False
    norm_head: bool = False
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 32768
    rope_parameters: dict[str, Any] | None = None
    layer_group_size: int = 1
    group_norm_size: int = 1
    first_k_dense_replace: int = 1
    num_experts: int = 256
    num_shared_experts: int = 1
    num_experts_per_tok: int = 8
    n_group: int = 8
    topk_group: int = 4
    moe_intermediate_size: int = 512
    moe_shared_expert_intermediate_size: int | None = None
    moe_router_enable_expert_bias: bool = True
    score_function: str = "sigmoid"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    num_nextn_predict_layers: int = 0
    initializer_range: float = 0.02
    pad_token_id: int | None = 156892
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = 156892


class FusedHeads(nn.Module):
    """q, k and v from one matrix, q and k normalised per head."""

    def __init__(self, config: Any, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        heads, self.head_dim = config.num_attention_heads, head_dim
        self.heads = [heads, kv_heads, kv_heads]
        width = sum(self.heads) * self.head_dim
        self.query_key_value = nn.Linear(config.hidden_size, width, bias=config.use_qkv_bias)
        self.query_layernorm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.key_layernorm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.dense = nn.Linear(heads * self.head_dim, config.hidden_size, bias=config.use_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x `[T, D]` to q `[T, H, K]`, k and v `[T, HK, K]`."""
        q, k, v = torch.split(self.query_key_value(x).view(len(x), -1, self.head_dim), self.heads, dim=1)
        return self.query_layernorm(q), self.key_layernorm(k), v


class Attention(FusedHeads):
    """Grouped attention of the last layer of a group."""

    def __init__(self, layer: int, config: Any) -> None:
        super().__init__(config, config.num_key_value_heads, _head_dim(config))
        self.layer = layer
        self.memory = AttentionMemory(config.num_key_value_heads, self.head_dim, self.head_dim)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary) -> Tensor:
        output = batch.attend(self.layer, *self.project(x), rotary, self.head_dim**-0.5)
        return self.dense(output.reshape(len(x), -1))  # type: ignore[no-any-return]


class LightningAttention(FusedHeads):
    """Every query head has keys of its own, rotated before they are written into the state."""

    def __init__(self, layer: int, index: int, config: Any, head_dim: int) -> None:
        heads = config.num_attention_heads
        super().__init__(config, heads, head_dim)
        self.layer = layer
        self.memory = LinearMemory(FAMILY, heads, self.head_dim, self.head_dim)
        self.log_decay = log_decay(heads, index, config.num_hidden_layers)
        self.g_proj = nn.Linear(config.hidden_size, heads * self.head_dim, bias=False)
        self.g_norm = GroupRMSNorm(heads * self.head_dim, config.group_norm_size, config.rms_norm_eps)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary) -> Tensor:
        assert rotary is not None, "the linear layers of this model have positions"
        q, k, v = self.project(x)
        q, k = (ROTATE.on(x.device)(part.float(), *rotary) for part in (q, k))
        decay = torch.tensor(self.log_decay, device=x.device)
        output = batch.recur(self.layer, FAMILY, LinearInputs(q * self.head_dim**-0.5, k, v, decay))
        gated = self.g_norm(output.flatten(1)) * torch.sigmoid(self.g_proj(x).float())
        return self.dense(gated.to(x.dtype))  # type: ignore[no-any-return]


def build(config: Any) -> HybridModel:
    """The text model of a Ring-linear config."""
    require(
        config,
        hidden_act="silu",
        use_qk_norm=True,
        linear_silu=False,
        norm_head=False,
        score_function="sigmoid",
        moe_router_enable_expert_bias=True,
    )
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = []
    for index, (kind, number) in enumerate(numbered(grouped_kinds(config))):
        linear = kind == "linear"
        mixer = LightningAttention(number, index, config, _head_dim(config)) if linear else Attention(number, config)
        layers.append(DecoderLayer(mixer, _feed_forward(config, index), norm, name="attention"))
    positions, last = (
        Positions(RotaryPositions(config), RotaryPositions(config, movable=True)),
        config.num_hidden_layers,
    )
    predictors = "|".join(str(last + extra) for extra in range(config.num_nextn_predict_layers)) or "none"
    names = Names(_RENAMES, unused=rf"model\.layers\.({predictors})\.")
    return CausalLM(config, layers, norm(), positions, names)


def log_decay(heads: int, index: int, layers: int) -> list[float]:
    """Log decay of each head in layer `index`, weaker with depth. Depth counts from the second layer, so that the
    first decays faster than its slopes: so it was published, and so the weights were trained."""
    depth = 1 - (index - 1) / max(layers - 1, 1) + 1e-5
    return [-slope * depth for slope in head_slopes(heads)]


def head_slopes(heads: int) -> list[float]:
    """2^(-8/H), 2^(-16/H), … for a power of two; else those of the next lower power, and every other one of the next
    higher (ALiBi, arXiv 2108.12409)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return slopes if power == heads else slopes + head_slopes(2 * power)[::2][: heads - power]


def grouped_kinds(config: Any) -> list[str]:
    """The last layer of each group is full attention, and so are layers that make no whole group."""
    size, layers = config.layer_group_size, config.num_hidden_layers
    grouped = layers // size * size
    return ["full" if (index + 1) % size == 0 or index >= grouped else "linear" for index in range(layers)]


def _feed_forward(config: Any, index: int) -> nn.Module:
    hidden, width = config.hidden_size, config.moe_intermediate_size
    if index < config.first_k_dense_replace:
        return GatedMLP(hidden, config.intermediate_size, config.use_bias)
    groups = (config.n_group, config.topk_group, config.norm_topk_prob, config.routed_scaling_factor)
    router = SigmoidRouter(hidden, config.num_experts, config.num_experts_per_tok, *groups)
    shared = (config.moe_shared_expert_intermediate_size or width) * config.num_shared_experts
    return SharedExpertsMoE(router, Experts(hidden, width, config.num_experts), GatedMLP(hidden, shared))


def _head_dim(config: Any) -> int:
    return config.head_dim or config.hidden_size // config.num_attention_heads  # type: ignore[no-any-return]
