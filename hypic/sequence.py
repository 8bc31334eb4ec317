"""What a sequence is made of while it runs: its private memory, and the pieces of its prompt.

A prompt is a chain of pieces. Active pieces are computed; reused pieces stand for tokens that were computed
before, as one operator per linear layer, with their keys and values already copied into the private memory.
Where pieces come from (caches, arms, plans) is not known here.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from hypic.kernels.chunk_scan.naive import Pair


@dataclass(frozen=True)
class CacheSpec:
    """Shapes of what a model remembers of a text.

    linear_layers, heads, key_dim, value_dim: recurrent states are float32 `[L, H, K, V]`. conv_channels,
    conv_width: conv tails are `[L, c-1, C]`; 0 and 1 for a model without convolution.
    attention_layers, kv_heads, attention_key_dim, attention_value_dim: keys and values are
    `[F, S, HK, D]`. dtype: of everything but the states.
    """

    linear_layers: int
    heads: int
    key_dim: int
    value_dim: int
    conv_channels: int
    conv_width: int
    attention_layers: int
    kv_heads: int
    attention_key_dim: int
    attention_value_dim: int
    dtype: torch.dtype
    device: torch.device

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of the keys and values of a text."""
        width = self.kv_heads * (self.attention_key_dim + self.attention_value_dim)
        return tokens * self.attention_layers * width * self.dtype.itemsize

    def state_bytes(self) -> int:
        """Bytes of one set of recurrent states and conv tails."""
        states = self.heads * self.key_dim * self.value_dim * 4
        tails = (self.conv_width - 1) * self.conv_channels * self.dtype.itemsize
        return self.linear_layers * (states + tails)


@dataclass
class SequenceCache:
    """The private memory of one sequence: nothing in it is shared, so nothing else can change it.

    keys, values: `[F, S, HK, D]`, keys rotated to their positions, S the capacity. states: float32
    `[L, H, K, V]`. conv_tails: `[L, c-1, C]`. tokens: how many positions are filled.
    """

    keys: Tensor
    values: Tensor
    states: Tensor
    conv_tails: Tensor
    tokens: int = 0

    @classmethod
    def empty(cls, spec: CacheSpec, capacity_tokens: int) -> "SequenceCache":
        """A sequence that has read nothing: zero states, zero tails, room for `capacity_tokens`."""
        kv = (spec.attention_layers, capacity_tokens, spec.kv_heads)
        return cls(
            keys=torch.empty(*kv, spec.attention_key_dim, dtype=spec.dtype, device=spec.device),
            values=torch.empty(*kv, spec.attention_value_dim, dtype=spec.dtype, device=spec.device),
            states=torch.zeros(spec.linear_layers, spec.heads, spec.key_dim, spec.value_dim, device=spec.device),
            conv_tails=torch.zeros(
                spec.linear_layers,
                spec.conv_width - 1,
                spec.conv_channels,
                dtype=spec.dtype,
                device=spec.device,
            ),
        )

    @property
    def capacity_tokens(self) -> int:
        return self.keys.shape[1]

    def copy(self) -> "SequenceCache":
        """The same memory once more, to go on from otherwise."""
        return SequenceCache(
            self.keys.clone(), self.values.clone(), self.states.clone(), self.conv_tails.clone(), self.tokens
        )


@dataclass(frozen=True)
class Active:
    """A piece that is computed: how many tokens."""

    tokens: int


class LayerOperators(Protocol):
    """What a text does to the linear layers: one pair a layer."""

    def pair(self, layer: int) -> Pair:
        """(T, S) in float32, made when it is asked for: pairs of all layers and pieces at once would take gigabytes."""


@dataclass(frozen=True)
class Reused:
    """A piece that is not computed: how many tokens, and what they do to the linear layers. conv_tails: `[L, c-1, C]`,
    the last inputs of the piece.
    """

    tokens: int
    operators: LayerOperators
    conv_tails: Tensor


Piece = Active | Reused


@dataclass
class Trace:
    """What a forward pass is asked to write down about one sequence, filled layer by layer.

    want_kv: keep keys without rotation, and values, of the active tokens. want_entering, want_transition:
    indices of active pieces whose entering state and conv tail, or transition, is wanted.
    Filled: keys, values: per full-attention layer `[T, HK, D]`. states, conv_tails, transitions: active piece ->
    per linear layer. final_states and final conv tails stand in the sequence's cache.
    """

    want_kv: bool = False
    want_entering: tuple[int, ...] = ()
    want_transition: tuple[int, ...] = ()
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    states: dict[int, list[Tensor]] = field(default_factory=dict)
    conv_tails: dict[int, list[Tensor]] = field(default_factory=dict)
    transitions: dict[int, list[Tensor]] = field(default_factory=dict)

    def entering(self, piece: int, cache: SequenceCache) -> tuple[Tensor, Tensor]:
        """State `[L, H, K, V]` and conv tails `[L, c-1, C]` with which a wanted piece was entered. cache: the
        sequence's own, whose shapes hold where no linear layer, or no convolution, wrote anything down."""
        assert piece in self.want_entering, (piece, self.want_entering)
        states, tails = self.states.get(piece, []), self.conv_tails.get(piece, [])
        return (
            torch.stack(states) if states else torch.zeros_like(cache.states),
            torch.stack(tails) if tails else torch.zeros_like(cache.conv_tails),
        )


@dataclass
class Sequence:
    """One prompt, or one segment being built, in a forward pass.

    token_ids: int64 `[T]` of the active pieces together, in order. The last piece must be active.
    """

    cache: SequenceCache
    pieces: tuple[Piece, ...]
    token_ids: Tensor
    trace: Trace = field(default_factory=Trace)

    def __post_init__(self) -> None:
        active = sum(piece.tokens for piece in self.pieces if isinstance(piece, Active))
        assert active == len(self.token_ids) > 0, (active, len(self.token_ids))
        assert isinstance(self.pieces[-1], Active), "the last piece of a sequence is computed"
        assert self.cache.tokens + self.total_tokens <= self.cache.capacity_tokens

    @property
    def total_tokens(self) -> int:
        """Tokens of all pieces, computed or not."""
        return sum(piece.tokens for piece in self.pieces)
