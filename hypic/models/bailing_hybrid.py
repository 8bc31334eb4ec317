"""Ling 3 (`bailing_hybrid`): Kimi delta attention whose decay is bounded, rotary latent attention with a gate for each
head at the end of each group of layers, and sigmoid-routed experts."""

import math
from functools import partial
from typing import Any

from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.kimi_delta import KimiDeltaAttention, KimiDeltaShape
from hypic.layers.latent_attention import LatentAttention, LatentShape
from hypic.layers.mixer import numbered
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.contract import HybridModel, require
from hypic.models.kimi_linear import feed_forward

MODEL_TYPES = ("bailing_hybrid",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 5,
    "layer_group_size": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
    "rope_theta": 10000.0,
}

_RENAMES = (
    (r"^model\.word_embeddings\.", "model.embed_tokens."),
    (r"\.attention\.dense\.", ".attention.o_proj."),
    (r"\.attention\.", ".self_attn."),
    (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias"),
)


def build(config: Any) -> HybridModel:
    """The text model of a Ling 3 config."""
    require(config, hidden_act="silu", tie_word_embeddings=False)
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = []
    for index, (kind, number) in enumerate(numbered(config.layer_types)):
        linear = kind == "linear_attention"
        mixer = KimiDeltaAttention(number, _delta(config)) if linear else LatentAttention(number, _latent(config))
        layers.append(DecoderLayer(mixer, feed_forward(config, index), norm, name="self_attn"))
    last = config.num_hidden_layers
    predictors = "|".join(str(last + extra) for extra in range(config.num_mtp_layers)) or "none"
    names = Names(_RENAMES, unused=rf"model\.layers\.({predictors})\.")
    return CausalLM(config, layers, norm(), Positions(full=RotaryPositions(config)), names)


def _delta(config: Any) -> KimiDeltaShape:
    return KimiDeltaShape(
        hidden_size=config.hidden_size,
        heads=config.linear_num_heads,
        head_dim=config.linear_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
        low_rank=False,
        decay_floor=config.kda_lower_bound if config.kda_safe_gate else None,
        rate_shape=(config.linear_num_heads,),
    )


def _latent(config: Any) -> LatentShape:
    rope, scale = config.rope_parameters, (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    if rope.get("rope_type", "default") != "default" and rope.get("mscale_all_dim") and rope["factor"] > 1:
        scale *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1.0) ** 2
    return LatentShape(
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        nope_dim=config.qk_nope_head_dim,
        rope_dim=config.qk_rope_head_dim,
        value_dim=config.v_head_dim,
        kv_rank=config.kv_lora_rank,
        q_rank=config.q_lora_rank,
        scale=scale,
        bias=config.attention_bias,
        head_gate=True,
    )
