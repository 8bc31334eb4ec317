"""Full attention with grouped heads, normalised queries and keys, and an optional output gate."""

import torch
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.mixer import AttentionMemory
from hypic.layers.norm import RMSNorm


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
