"""A text model made of layers, as the engine wants it (hypic.models.contract); model files say what its layers are."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch
from hypic.errors import UnsupportedModelError
from hypic.kernels.registry import ROTATE
from hypic.layers.decoder import Decoder
from hypic.layers.mixer import AttentionMemory, Layer, LinearMemory, kind_of
from hypic.layers.rotary import RotaryPositions
from hypic.linear.rotation import check_rotation, rotate_state
from hypic.sequence import CacheSpec

Memory = TypeVar("Memory", LinearMemory, AttentionMemory)


@dataclass(frozen=True)
class Names:
    """From the names of a checkpoint to ours: (pattern, replacement) of `re.sub`, applied in order, and a pattern of
    names, matched at their start, that text generation does not use."""

    renames: tuple[tuple[str, str], ...] = ()
    unused: str = r"$."

    def ours(self, name: str) -> str | None:
        if re.match(self.unused, name):
            return None
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


@dataclass(frozen=True)
class Positions:
    """Rotary embeddings of the two kinds of layers; None for a kind that has none."""

    full: RotaryPositions | None = None
    linear: RotaryPositions | None = None


class CausalLM(nn.Module):
    """Embedding, layers, norm and output head."""

    def __init__(
        self,
        config: Any,
        layers: Sequence[Layer],
        norm: nn.Module,
        positions: Positions = Positions(),
        names: Names = Names(),
        embedding_scale: float = 1.0,
        logit_scale: float = 1.0,
        may_tie: bool = True,
        decoder: type[Decoder] = Decoder,
    ) -> None:
        """config: vocab_size, hidden_size and tie_word_embeddings are read, the last where the architecture has a tied
        form (may_tie). Raises UnsupportedModelError where linear keys are rotated and the family's transitions do not
        commute with that."""
        super().__init__()
        self.config, self.positions, self.names, self.logit_scale = config, positions, names, logit_scale
        mixers = [mixer for layer in layers for mixer in layer.mixers]
        self.layer_kinds = tuple(kind_of(mixer) for mixer in mixers)
        self._linear = _the_same([mixer.memory for mixer in mixers if isinstance(mixer.memory, LinearMemory)])
        self._full = _the_same([mixer.memory for mixer in mixers if isinstance(mixer.memory, AttentionMemory)])
        self.family = self._linear.family if self._linear else None
        if self.family is not None and positions.linear is not None:
            try:
                check_rotation(self.family)
            except ValueError as error:
                raise UnsupportedModelError(str(error)) from error
        self.model = decoder(config.vocab_size, config.hidden_size, layers, norm, embedding_scale)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tied = may_tie and bool(config.tie_word_embeddings)
        if self.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, batch: Batch) -> Tensor:
        full, linear = self.positions.full, self.positions.linear
        rotations = {
            "full": full(batch.positions) if full else None,
            "linear": linear(batch.positions) if linear else None,
        }
        return self.model(batch, rotations)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self.lm_head.weight).float()
        return logits if self.logit_scale == 1.0 else logits * self.logit_scale

    def cache_spec(self) -> CacheSpec:
        linear, full, weight = self._linear, self._full, self.model.embed_tokens.weight
        return CacheSpec(
            linear_layers=self.layer_kinds.count("linear"),
            heads=linear.heads if linear else 0,
            key_dim=linear.key_dim if linear else 0,
            value_dim=linear.value_dim if linear else 0,
            conv_channels=linear.conv_channels if linear else 0,
            conv_width=linear.conv_width if linear else 1,
            attention_layers=self.layer_kinds.count("full"),
            kv_heads=full.kv_heads if full else 0,
            attention_key_dim=full.key_dim if full else 0,
            attention_value_dim=full.value_dim if full else 0,
            dtype=weight.dtype,
            device=weight.device,
        )

    def rotate_keys(self, keys: Tensor, positions: Tensor, out: Tensor) -> None:
        if self.positions.full is None or self._full is None:
            out.copy_(keys)
        else:
            ROTATE.on(keys.device)(keys, *self.positions.full(positions), out=out)

    def move_states(self, states: Tensor, offset_tokens: int) -> Tensor:
        if self.positions.linear is None or not offset_tokens:
            return states
        return rotate_state(states, *self.positions.linear.turn(offset_tokens, states.device))

    def checkpoint_name(self, name: str) -> str | None:
        return self.names.ours(name)


def _the_same(memories: list[Memory]) -> Memory | None:
    """What all mixers of a kind remember: one pool holds the memory of all of them."""
    assert len(set(memories)) <= 1, memories
    return memories[0] if memories else None
