"""Kimi-Linear (`kimi_linear`): Kimi delta attention, latent attention without positions in every fourth layer, and
sigmoid-routed experts."""

from functools import partial
from typing import Any

from torch import nn

from hypic.layers.causal_lm import CausalLM, Names
from hypic.layers.decoder import DecoderLayer
from hypic.layers.kimi_delta import KimiDeltaAttention, KimiDeltaShape
from hypic.layers.latent_attention import LatentAttention, LatentShape
from hypic.layers.mixer import numbered
from hypic.layers.mlp import Experts, GatedMLP, SharedExpertsMoE, SigmoidRouter
from hypic.layers.norm import RMSNorm
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("kimi_linear",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "linear_num_heads": 3,
    "linear_head_dim": 16,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
}

_NAMES = Names(
    (
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.forget_gate\.", "."),
        (r"\.w1\.weight$", ".gate_proj.weight"),
        (r"\.w2\.weight$", ".down_proj.weight"),
        (r"\.w3\.weight$", ".up_proj.weight"),
    )
)


def build(config: Any) -> HybridModel:
    """The text model of a Kimi-Linear config."""
    require(config, hidden_act="silu", mla_use_nope=True)
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = []
    for index, (kind, number) in enumerate(numbered(config.layer_types)):
        linear = kind == "linear_attention"
        mixer = KimiDeltaAttention(number, _delta(config)) if linear else LatentAttention(number, _latent(config))
        layers.append(DecoderLayer(mixer, feed_forward(config, index), norm, name="self_attn"))
    return CausalLM(config, layers, norm(), names=_NAMES, may_tie=False)


def feed_forward(config: Any, index: int) -> nn.Module:
    """A dense layer, or experts beside shared ones; `bailing_hybrid` has the same."""
    hidden, width = config.hidden_size, config.moe_intermediate_size
    if config.mlp_layer_types[index] == "dense":
        return GatedMLP(hidden, config.intermediate_size)
    groups = (config.n_group, config.topk_group, config.norm_topk_prob, config.routed_scaling_factor)
    router = SigmoidRouter(hidden, config.num_local_experts, config.num_experts_per_tok, *groups)
    shared = GatedMLP(hidden, width * config.n_shared_experts)
    return SharedExpertsMoE(router, Experts(hidden, width, config.num_local_experts), shared)


def _delta(config: Any) -> KimiDeltaShape:
    return KimiDeltaShape(
        hidden_size=config.hidden_size,
        heads=config.linear_num_heads,
        head_dim=config.linear_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
        low_rank=True,
        decay_floor=None,
        rate_shape=(1, 1, config.linear_num_heads, 1),
    )


def _latent(config: Any) -> LatentShape:
    return LatentShape(
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        kv_rank=config.kv_lora_rank,
        q_rank=config.q_lora_rank,
        scale=(config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5,
        bias=config.attention_bias,
    )
