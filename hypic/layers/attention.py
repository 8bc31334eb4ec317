"""Full attention with grouped heads: plain, and with normalised queries and keys and an output gate."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hypic.batch import Batch, Reach, Rotary
from hypic.layers.mixer import AttentionMemory
from hypic.layers.norm import RMSNorm


@dataclass(frozen=True)
class AttentionShape:
    """Sizes: H query heads and HK key heads of D dimensions. scale: on the scores, by default D^-1/2. window: of a
    layer that does not see everything. sinks: a learned score per head that takes its share and gives nothing."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    scale: float | None = None
    window: int | None = None
    sinks: bool = False


class Attention(nn.Module):
    """Grouped-query attention, rotary where the model rotates. `norm_eps`: q and k are normalised over all heads."""

    def __init__(self, layer: int, shape: AttentionShape, norm_eps: float | None = None) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape
        self.memory = AttentionMemory(shape.kv_heads, shape.head_dim, shape.head_dim)
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, width, bias=shape.bias)
        self.k_proj = nn.Linear(shape.hidden_size, kv_width, bias=shape.bias)
        self.v_proj = nn.Linear(shape.hidden_size, kv_width, bias=shape.bias)
        self.o_proj = nn.Linear(width, shape.hidden_size, bias=shape.bias)
        self.q_norm = RMSNorm(width, norm_eps) if norm_eps is not None else None
        self.k_norm = RMSNorm(kv_width, norm_eps) if norm_eps is not None else None
        self.sinks = nn.Parameter(torch.empty(shape.heads)) if shape.sinks else None

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.view(x.shape[0], -1, self.shape.head_dim) for part in (q, k, v))
        scale = self.shape.head_dim**-0.5 if self.shape.scale is None else self.shape.scale
        output = batch.attend(self.layer, q, k, v, rotary, scale, Reach(self.shape.window, self.sinks))
        return self.o_proj(output.reshape(x.shape[0], -1))  # type: ignore[no-any-return]


class GatedAttention(nn.Module):
    """The attention of Qwen3-Next and Qwen3.5: q and a sigmoid output gate come from one projection."""

    def __init__(
        self, layer: int, hidden_size: int, heads: int, kv_heads: int, head_dim: int, eps: float, bias: bool
    ) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_dim = layer, heads, kv_heads, head_dim
        self.memory = AttentionMemory(kv_heads, head_dim, head_dim)
        self.q_proj = nn.Linear(hidden_size, heads * head_dim * 2, bias=bias)
        self.k_proj = nn.Linear(hidden_size, kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden_size, kv_heads * head_dim, bias=bias)
        self.o_proj = nn.Linear(heads * head_dim, hidden_size, bias=bias)
        self.q_norm = RMSNorm(head_dim, eps, offset=1.0)
        self.k_norm = RMSNorm(head_dim, eps, offset=1.0)

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary) -> Tensor:
        tokens = x.shape[0]
        q, gate = self.q_proj(x).view(tokens, self.heads, 2 * self.head_dim).chunk(2, dim=-1)
        k = self.k_norm(self.k_proj(x).view(tokens, self.kv_heads, self.head_dim))
        v = self.v_proj(x).view(tokens, self.kv_heads, self.head_dim)
        output = batch.attend(self.layer, self.q_norm(q), k, v, rotary, self.head_dim**-0.5)
        gated = output.reshape(tokens, -1) * torch.sigmoid(gate.reshape(tokens, -1))
        return self.o_proj(gated)  # type: ignore[no-any-return]
