"""gpt-oss (`gpt_oss`): attention with sinks, in every other layer over a sliding window, and experts everywhere; no
linear layers, so a cached segment is keys and values alone.

Checkpoints in bfloat16. The published MXFP4 ones are to be converted first (transformers dequantises on load).
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic.layers.attention import Attention, AttentionShape
from hypic.layers.causal_lm import CausalLM, Positions
from hypic.layers.decoder import DecoderLayer
from hypic.layers.mlp import Experts
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("gpt_oss",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 24,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
}


class Router(nn.Module):
    """The k largest logits, softmax over them. Returns weights `[T, k]` in the dtype of x, and ids `[T, k]`."""

    def __init__(self, hidden_size: int, experts: int, top_k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(experts))
        self.top_k = top_k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = F.linear(x, self.weight, self.bias).topk(self.top_k, dim=-1)
        return weights.softmax(-1), chosen


class ClampedExperts(Experts):
    """Experts with biases, stored inputs first: gate_up `[E, D, 2I]` with gate and up interleaved, down `[E, I, D]`."""

    def __init__(self, config: Any) -> None:
        nn.Module.__init__(self)
        experts, hidden, width = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(experts, hidden, 2 * width))
        self.gate_up_proj_bias = nn.Parameter(torch.empty(experts, 2 * width))
        self.down_proj = nn.Parameter(torch.empty(experts, width, hidden))
        self.down_proj_bias = nn.Parameter(torch.empty(experts, hidden))
        self.gain, self.limit = config.swiglu_alpha, config.swiglu_limit

    def run(self, x: Tensor, expert: int) -> Tensor:
        return torch.addmm(self.down_proj_bias[expert], self.activated(x, expert), self.down_proj[expert])

    def activated(self, x: Tensor, expert: int) -> Tensor:
        both = torch.addmm(self.gate_up_proj_bias[expert], x, self.gate_up_proj[expert])
        gate, up = both[..., 0::2].clamp(max=self.limit), both[..., 1::2].clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(gate * self.gain)


class FeedForward(nn.Module):
    """Router and experts under their names."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.router = Router(config.hidden_size, config.num_local_experts, config.num_experts_per_tok)
        self.experts = ClampedExperts(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.experts(x, *self.router(x))  # type: ignore[no-any-return]


def build(config: Any) -> HybridModel:
    """The text model of a gpt-oss config."""
    require(config, hidden_act="silu")
    norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
    layers = [
        DecoderLayer(Attention(number, _attention(config, kind)), FeedForward(config), norm)
        for number, kind in enumerate(config.layer_types)
    ]
    return CausalLM(config, layers, norm(), Positions(full=RotaryPositions(config)))


def _attention(config: Any, kind: str) -> AttentionShape:
    return AttentionShape(
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.attention_bias,
        window=config.sliding_window if kind == "sliding_attention" else None,
        sinks=True,
    )
