"""Ring and Ling 2.5, 2.6 and 3 (`bailing_hybrid`): rotary latent attention at the end of each group of layers, and
sigmoid-routed experts. The other layers are lightning attention with rotated keys up to 2.6, and Kimi delta attention
with a bounded decay since; the older ones are known by their `group_norm_size`.
"""

import math
from functools import partial
from typing import Any

from hypic.layers.causal_lm import CausalLM, Names, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.kimi_delta import KimiDeltaAttention, KimiDeltaShape
from hypic.layers.latent_attention import LatentAttention, LatentShape
from hypic.layers.mixer import Mixer, numbered
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.bailing_moe_linear import LightningAttention, grouped_kinds
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

_EMBEDDINGS = (r"^model\.word_embeddings\.", "model.embed_tokens.")
_BIAS = (r"\.mlp\.gate\.expert_bias$", ".mlp.gate.e_score_correction_bias")
_ATTENTION = (r"\.attention\.|\.self_attn\.forget_gate\.", ".self_attn.")
_OUTPUT = (r"\.self_attn\.dense\.", ".self_attn.o_proj.")


def build(config: Any) -> HybridModel:
    """The text model of a Ring or Ling config."""
    require(config, hidden_act="silu")
    lightning = hasattr(config, "group_norm_size")
    kinds = [kind.removesuffix("_attention") for kind in config.layer_types]
    if lightning:
        require(config, use_qk_norm=True, linear_silu=False, rope_interleave=True, score_function="sigmoid")
        kinds = grouped_kinds(config)
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = []
    for index, (kind, number) in enumerate(numbered(kinds)):
        mixer: Mixer = LatentAttention(number, _latent(config, gated=not lightning))
        if kind == "linear" and lightning:
            mixer = LightningAttention(number, index, config, config.linear_head_dim)
        elif kind == "linear":
            mixer = KimiDeltaAttention(number, _delta(config))
        layers.append(DecoderLayer(mixer, feed_forward(config, index), norm, name="self_attn"))
    positions = _lightning_positions(config) if lightning else Positions(full=RotaryPositions(config))
    return CausalLM(config, layers, norm(), positions, _names(config, kinds, lightning), may_tie=False)


def _names(config: Any, kinds: list[str], lightning: bool) -> Names:
    """Layers behind the last predict further tokens. Lightning attention calls its output `dense` with us as well."""
    full = "|".join(str(index) for index, kind in enumerate(kinds) if kind == "full")
    output = (rf"\.layers\.({full})\.self_attn\.dense\.", r".layers.\1.self_attn.o_proj.") if lightning else _OUTPUT
    last = config.num_hidden_layers
    predictors = "|".join(str(last + extra) for extra in range(config.num_mtp_layers)) or "none"
    return Names((_EMBEDDINGS, _BIAS, _ATTENTION, output), unused=rf"model\.layers\.({predictors})\.")


def _lightning_positions(config: Any) -> Positions:
    """The factor of partial rotation is that of the linear heads; the others rotate what they have for it."""
    rotated = int(config.linear_head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))
    return Positions(RotaryPositions(config, config.qk_rope_head_dim), RotaryPositions(config, rotated, movable=True))


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


def _latent(config: Any, gated: bool) -> LatentShape:
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
        bias=config.attention_bias if gated else config.use_qkv_bias,
        head_gate=gated,
    )
