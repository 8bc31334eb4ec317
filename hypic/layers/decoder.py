"""The decoder that hybrid models share: embedding, pre-norm layers whose mixer differs, final norm, head."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch, Rotary
from hypic.layers.attention import GatedAttention
from hypic.layers.gated_delta_net import GatedDeltaNet


class DecoderLayer(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)). The mixer is linear attention or full attention."""

    def __init__(self, mixer: GatedDeltaNet | GatedAttention, mlp: nn.Module, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.linear_attn = mixer if isinstance(mixer, GatedDeltaNet) else None
        self.self_attn = mixer if isinstance(mixer, GatedAttention) else None
        self.mlp = mlp
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()

    def forward(self, x: Tensor, batch: Batch, rotary: Rotary) -> Tensor:
        normed = self.input_layernorm(x)
        if self.linear_attn is not None:
            x = x + self.linear_attn(normed, batch)
        elif self.self_attn is not None:
            x = x + self.self_attn(normed, batch, rotary)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Tokens to normalised hidden states. Parameter names are those of Hugging Face checkpoints."""

    def __init__(self, vocab_size: int, hidden_size: int, layers: list[DecoderLayer], norm: nn.Module) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, batch: Batch, rotary: Rotary) -> Tensor:
        x = F.embedding(batch.token_ids, self.embed_tokens.weight)  # [T, D]
        for layer in self.layers:
            x = layer(x, batch, rotary)
        return self.norm(x)  # type: ignore[no-any-return]
