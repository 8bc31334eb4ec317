"""Qwen3.5 mixture-of-experts text models (`qwen3_5_moe`): Qwen3.5 whose feed-forward layers are experts."""

from typing import Any

from torch import nn

from hypic.layers.mlp import SharedExpertMoE
from hypic.models.contract import HybridModel
from hypic.models.qwen3_5 import TINY as DENSE
from hypic.models.qwen3_5 import text_model

MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")
TINY: dict[str, Any] = DENSE | {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 24,
}


def build(config: Any) -> HybridModel:
    """The mixture-of-experts text model of a Qwen3.5 config."""
    return text_model(config, mlp=_experts)


def _experts(config: Any, layer: int) -> nn.Module:
    return SharedExpertMoE(
        config.hidden_size,
        config.moe_intermediate_size,
        config.shared_expert_intermediate_size,
        config.num_experts,
        config.num_experts_per_tok,
        renormalise=True,
    )
