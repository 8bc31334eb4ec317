"""Ring and Ling 2.5 as published: the layers of Ring-linear-2.0 with latent attention in place of grouped attention.

Source: configuration and tensor names of inclusionAI/Ring-2.5-1T; latent attention as in arXiv 2405.04434, keys and
values of every head written out.
"""

from typing import Any, ClassVar

import torch
from references import bailing_moe_linear
from references.bailing_moe_linear import Norm
from torch import Tensor, nn
from transformers import BailingHybridConfig


class LatentAttention(nn.Module):
    def __init__(self, config: Any, index: int, linear: bool) -> None:
        super().__init__()
        c = self.config = config
        width = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
        self.q_a_proj = nn.Linear(c.hidden_size, c.q_lora_rank, bias=False)
        self.q_a_layernorm = Norm(c.q_lora_rank, 1e-6)
        self.q_b_proj = nn.Linear(c.q_lora_rank, width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim, bias=False)
        self.kv_a_layernorm = Norm(c.kv_lora_rank, 1e-6)
        up = c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim)
        self.kv_b_proj = nn.Linear(c.kv_lora_rank, up, bias=False)
        self.dense = nn.Linear(c.num_attention_heads * c.v_head_dim, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c, heads = self.config, self.config.num_attention_heads
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(len(x), heads, -1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(len(x), heads, -1)
        q_nope, q_rope = q.split([c.qk_nope_head_dim, c.qk_rope_head_dim], -1)
        k_nope, v = kv.split([c.qk_nope_head_dim, c.v_head_dim], -1)
        scores = torch.einsum("thd,shd->hts", q_nope, k_nope)
        scores = scores + torch.einsum("thd,sd->hts", self.turn(q_rope), self.turn(k_rope[:, None])[:, 0])
        later = torch.ones(len(x), len(x)).triu(1).bool()
        weights = (scores / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1)
        return self.dense(torch.einsum("hts,shd->thd", weights, v).flatten(1))

    def turn(self, x: Tensor) -> Tensor:
        """Rotate pairs of neighbours, as complex numbers."""
        theta, dim = self.config.rope_parameters["rope_theta"], x.shape[-1]
        angles = torch.outer(torch.arange(len(x)).float(), theta ** -(torch.arange(0, dim, 2).float() / dim))[:, None]
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


class Layer(bailing_moe_linear.Layer):
    full_attention = LatentAttention


class Decoder(bailing_moe_linear.Decoder):
    layer = Layer


class ForCausalLM(bailing_moe_linear.ForCausalLM):
    config_class = BailingHybridConfig
    decoder = Decoder
    _tied_weights_keys: ClassVar[dict[str, str]] = {}
