"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) in its absorbed form.

What is kept of a token is its latent and one small key, not a key and a value for each head: the up-projection of keys
moves to the query, that of values behind the attention. Same result, for Kimi-Linear a ninth of the bytes per token.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.mixer import AttentionMemory
from hypic.layers.norm import RMSNorm

_LATENT_NORM_EPS = 1e-6  # not set by configs


@dataclass(frozen=True)
class LatentShape:
    """H query heads of `nope_dim` dimensions without positions and `rope_dim` with; values of `value_dim`; latents of
    `kv_rank`, and of `q_rank` where queries are compressed too. bias: of the down-projections and the output. scale:
    on the scores. head_gate: a sigmoid gate for each head."""

    hidden_size: int
    heads: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    kv_rank: int
    q_rank: int | None
    scale: float
    bias: bool = False
    head_gate: bool = False


class LatentAttention(nn.Module):
    """Keys `[T, 1, R + kv_rank]`, the part with positions first, and values `[T, 1, kv_rank]`, shared by all heads."""

    def __init__(self, layer: int, shape: LatentShape) -> None:
        super().__init__()
        self.layer, self.shape = layer, shape
        self.memory = AttentionMemory(1, shape.rope_dim + shape.kv_rank, shape.kv_rank)
        hidden, width = shape.hidden_size, shape.heads * (shape.nope_dim + shape.rope_dim)
        if shape.q_rank is None:
            self.q_proj = nn.Linear(hidden, width, bias=False)
        else:
            self.q_a_proj = nn.Linear(hidden, shape.q_rank, bias=shape.bias)
            self.q_a_layernorm = RMSNorm(shape.q_rank, _LATENT_NORM_EPS)
            self.q_b_proj = nn.Linear(shape.q_rank, width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, shape.kv_rank + shape.rope_dim, bias=shape.bias)
        self.kv_a_layernorm = RMSNorm(shape.kv_rank, _LATENT_NORM_EPS)
        self.kv_b_proj = nn.Linear(shape.kv_rank, shape.heads * (shape.nope_dim + shape.value_dim), bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.value_dim, hidden, bias=shape.bias)
        self.g_proj = nn.Linear(hidden, shape.heads, bias=False) if shape.head_gate else None

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary) -> Tensor:
        shape = self.shape
        down = self.q_proj(x) if shape.q_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q, q_rope = torch.split(down.view(len(x), shape.heads, -1), [shape.nope_dim, shape.rope_dim], dim=-1)
        latent, k_rope = torch.split(self.kv_a_proj_with_mqa(x), [shape.kv_rank, shape.rope_dim], dim=-1)
        latent = self.kv_a_layernorm(latent)
        up = self.kv_b_proj.weight.view(shape.heads, -1, shape.kv_rank)
        q = torch.einsum("thd,hdr->thr", q, up[:, : shape.nope_dim])
        output = batch.attend(
            self.layer,
            torch.cat([_half_split(q_rope), q], dim=-1),
            torch.cat([_half_split(k_rope), latent], dim=-1).unsqueeze(1),
            latent.unsqueeze(1),
            rotary,
            shape.scale,
        )
        output = torch.einsum("thr,hvr->thv", output, up[:, shape.nope_dim :])
        if self.g_proj is not None:
            output = output * torch.sigmoid(self.g_proj(x).float()).to(x.dtype).unsqueeze(-1)
        return self.o_proj(output.flatten(1))  # type: ignore[no-any-return]


def _half_split(x: Tensor) -> Tensor:
    """Pairs of neighbours, as these models rotate them, in the order in which `rotate` pairs: q and k alike, so that no
    product changes."""
    return torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
