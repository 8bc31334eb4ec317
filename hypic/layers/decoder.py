"""The decoder that hybrid models share: embedding, layers whose mixer differs, final norm."""

from collections.abc import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch
from hypic.layers.mixer import Layer, Mixer, Rotations, kind_of

_NAMES = {"linear": "linear_attn", "full": "self_attn"}


class DecoderLayer(nn.Module):
    """x + s·mixer(norm(x)), then x + s·mlp(norm(x)). The mixer is linear attention or full attention.

    name: under which the mixer stands in checkpoints, by default linear_attn or self_attn. residual_scale: s.
    """

    def __init__(
        self,
        mixer: Mixer,
        mlp: nn.Module,
        norm: Callable[[], nn.Module],
        name: str | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.kind = kind_of(mixer)
        self.name = name or _NAMES[self.kind]
        setattr(self, self.name, mixer)
        self.mlp = mlp
        self.input_layernorm = norm()
        self.post_attention_layernorm = norm()
        self.residual_scale = residual_scale

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        return (getattr(self, self.name),)

    def forward(self, x: Tensor, batch: Batch, rotations: Rotations) -> Tensor:
        mixed = getattr(self, self.name)(self.input_layernorm(x), batch, rotations[self.kind])
        x = x + self._scaled(mixed)
        return x + self._scaled(self.mlp(self.post_attention_layernorm(x)))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.residual_scale == 1.0 else x * self.residual_scale


class Decoder(nn.Module):
    """Tokens to normalised hidden states. Parameter names are those of Hugging Face checkpoints."""

    def __init__(
        self, vocab_size: int, hidden_size: int, layers: Sequence[Layer], norm: nn.Module, embedding_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.ModuleList(layers)  # type: ignore[arg-type]  # layers are modules; the Protocol cannot say so
        self.norm = norm
        self.embedding_scale = embedding_scale

    def forward(self, batch: Batch, rotations: Rotations) -> Tensor:
        x = F.embedding(batch.token_ids, self.embed_tokens.weight)  # [T, D]
        if self.embedding_scale != 1.0:
            x = x * self.embedding_scale
        for layer in self.layers:
            x = layer(x, batch, rotations)
        return self.norm(x)  # type: ignore[no-any-return]
