"""Qwen3-Next (`qwen3_next`): as Qwen3.5, with projections interleaved by key head, and experts in most layers."""

from typing import Any

import torch
from torch import Tensor, nn

from hypic.layers.conv import ConvWeight
from hypic.layers.gated_delta_net import GatedDeltaNet
from hypic.layers.mlp import GatedMLP, SharedExpertMoE
from hypic.models.contract import HybridModel
from hypic.models.qwen3_5 import text_model
from hypic.models.qwen3_5_moe import TINY as EXPERTS

MODEL_TYPES = ("qwen3_next",)
TINY = EXPERTS


class InterleavedDeltaNet(GatedDeltaNet):
    """One projection holds, key head by key head, its q, k and the v and z of the value heads it serves."""

    def build_projections(self) -> None:
        shape = self.shape
        self.conv1d = ConvWeight(shape.conv_channels, shape.conv_width)
        width = 2 * shape.key_heads * shape.key_dim + 2 * shape.value_heads * shape.value_dim
        self.in_proj_qkvz = nn.Linear(shape.hidden_size, width, bias=False)
        self.in_proj_ba = nn.Linear(shape.hidden_size, 2 * shape.value_heads, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        shape, tokens = self.shape, x.shape[0]
        served = shape.value_heads // shape.key_heads
        by_head = self.in_proj_qkvz(x).view(tokens, shape.key_heads, -1)
        sizes = [shape.key_dim, shape.key_dim, served * shape.value_dim, served * shape.value_dim]
        q, k, v, z = by_head.split(sizes, dim=-1)
        b, a = self.in_proj_ba(x).view(tokens, shape.key_heads, -1).chunk(2, dim=-1)
        qkv = torch.cat([part.reshape(tokens, -1) for part in (q, k, v)], dim=-1)
        z = z.reshape(tokens, shape.value_heads, shape.value_dim)
        return qkv, z, b.reshape(tokens, -1), a.reshape(tokens, -1)


def build(config: Any) -> HybridModel:
    """The text model of a Qwen3-Next config."""
    return text_model(config, mixer=InterleavedDeltaNet, mlp=_feed_forward)


def _feed_forward(config: Any, layer: int) -> nn.Module:
    sparse = config.num_experts > 0 and (layer + 1) % config.decoder_sparse_step == 0
    if layer in config.mlp_only_layers or not sparse:
        return GatedMLP(config.hidden_size, config.intermediate_size)
    return SharedExpertMoE(
        config.hidden_size,
        config.moe_intermediate_size,
        config.shared_expert_intermediate_size,
        config.num_experts,
        config.num_experts_per_tok,
        config.norm_topk_prob,
    )
