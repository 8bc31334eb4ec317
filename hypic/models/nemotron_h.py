"""Nemotron-H (`nemotron_h`): layers that each do one thing, Mamba2, attention without positions, or feed-forward."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch
from hypic.layers.attention import Attention, AttentionShape
from hypic.layers.causal_lm import CausalLM, Names
from hypic.layers.mamba2 import Mamba2, Mamba2Shape
from hypic.layers.mixer import Mixer, Rotations, numbered
from hypic.layers.mlp import Experts, SharedExpertsMoE, SigmoidRouter
from hypic.layers.norm import RMSNorm
from hypic.models.contract import HybridModel, require

MODEL_TYPES = ("nemotron_h",)
TINY: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_num_heads": 6,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 24,
    "chunk_size": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 40,
    "moe_latent_size": 24,
    "routed_scaling_factor": 1.5,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention", "mlp", "linear_attention"],
}

_NAMES = Names(
    (
        (r"^backbone\.", "model."),
        (r"^model\.embeddings\.", "model.embed_tokens."),
        (r"^model\.norm_f\.", "model.norm."),
    ),
    unused=r"mtp\.",
)
_KINDS = {"linear_attention": "linear", "full_attention": "full"}


class SquaredReluMLP(nn.Module):
    """down(relu(up(x))²)."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        super().__init__()
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.relu(self.up_proj(x)).square())  # type: ignore[no-any-return]


class SquaredReluExperts(Experts):
    """Experts without a gate: up `[E, I, D]`, down `[E, D, I]`."""

    def __init__(self, hidden_size: int, intermediate_size: int, experts: int) -> None:
        nn.Module.__init__(self)
        self.up_proj = nn.Parameter(torch.empty(experts, intermediate_size, hidden_size))
        self.down_proj = nn.Parameter(torch.empty(experts, hidden_size, intermediate_size))

    def activated(self, x: Tensor, expert: int) -> Tensor:
        return F.relu(F.linear(x, self.up_proj[expert])).square()


class LatentMoE(SharedExpertsMoE):
    """Experts that work in a space of fewer dimensions; router and shared experts see the full one."""

    def __init__(self, config: Any) -> None:
        latent = config.moe_latent_size
        experts = SquaredReluExperts(
            latent or config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
        )
        shared_size = config.moe_shared_expert_intermediate_size
        super().__init__(_router(config), experts, SquaredReluMLP(config.hidden_size, shared_size, config.mlp_bias))
        if latent:
            self.fc1_latent_proj: nn.Module = nn.Linear(config.hidden_size, latent, bias=config.mlp_bias)
            self.fc2_latent_proj: nn.Module = nn.Linear(latent, config.hidden_size, bias=config.mlp_bias)
        else:
            self.fc1_latent_proj = self.fc2_latent_proj = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x)
        routed = self.fc2_latent_proj(self.experts(self.fc1_latent_proj(x), weights, chosen))
        return routed + self.shared_experts(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """x + mixer(norm(x)), where the mixer may be a feed-forward layer."""

    def __init__(self, kind: str, number: int, config: Any) -> None:
        super().__init__()
        self.kind = _KINDS.get(kind)
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = _mixer(kind, number, config)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return (self.mixer,) if self.kind else ()  # type: ignore[return-value]  # a module and a Mixer

    def forward(self, x: Tensor, batch: Batch, rotations: Rotations) -> Tensor:
        normed = self.norm(x)
        mixed = self.mixer(normed, batch, rotations[self.kind]) if self.kind else self.mixer(normed)
        return x + mixed  # type: ignore[no-any-return]


def build(config: Any) -> HybridModel:
    """The text model of a Nemotron-H config."""
    require(config, mlp_hidden_act="relu2", mamba_hidden_act="silu", sliding_window=None)
    layers = [Block(kind, number, config) for kind, number in numbered(config.layers_block_type)]
    return CausalLM(config, layers, RMSNorm(config.hidden_size, config.layer_norm_epsilon), names=_NAMES, may_tie=False)


def _mixer(kind: str, number: int, config: Any) -> nn.Module:
    if kind == "linear_attention":
        return Mamba2(number, _mamba(config))
    if kind == "full_attention":
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        return Attention(number, AttentionShape(config.hidden_size, heads, kv_heads, config.head_dim))
    if kind == "mlp":
        return SquaredReluMLP(config.hidden_size, config.intermediate_size, config.mlp_bias)
    return LatentMoE(config)


def _mamba(config: Any) -> Mamba2Shape:
    """transformers holds the lower limit of steps in prefill but not in decoding; here it holds in both, so that a
    text is the same state however it was read."""
    return Mamba2Shape(
        hidden_size=config.hidden_size,
        heads=config.mamba_num_heads,
        head_dim=config.mamba_head_dim,
        groups=config.n_groups,
        state_dim=config.ssm_state_size,
        conv_width=config.conv_kernel,
        eps=config.layer_norm_epsilon,
        conv_bias=config.use_conv_bias,
        in_bias=config.use_bias,
        out_bias=config.use_bias,
        step_limits=(config.time_step_min, float("inf")),
    )


def _router(config: Any) -> SigmoidRouter:
    return SigmoidRouter(
        config.hidden_size,
        config.n_routed_experts,
        config.num_experts_per_tok,
        config.n_group,
        config.topk_group,
        config.norm_topk_prob,
        config.routed_scaling_factor,
    )
