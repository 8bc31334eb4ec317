"""What a layer that mixes tokens tells of itself: the memory it needs, from which a model's whole memory follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from hypic.batch import Batch, Rotary
from hypic.linear.family import LinearFamily

Rotations = Mapping[str, Rotary]
"""cos and sin by the kind of layer that they are for, "linear" or "full"."""


@dataclass(frozen=True)
class LinearMemory:
    """A state `[H, K, V]` that `family` advances, and the last c-1 inputs of C channels before the convolution, if
    there is one."""

    family: LinearFamily
    heads: int
    key_dim: int
    value_dim: int
    conv_channels: int = 0
    conv_width: int = 1


@dataclass(frozen=True)
class AttentionMemory:
    """For each token HK keys of K dimensions, kept without rotation, and HK values of V."""

    kv_heads: int
    key_dim: int
    value_dim: int


class Mixer(Protocol):
    """A layer that reads other tokens. `layer`, its index within its kind, is what it addresses the batch with."""

    @property
    def memory(self) -> LinearMemory | AttentionMemory: ...

    def __call__(self, x: Tensor, batch: Batch, rotary: Rotary) -> Tensor:
        """x `[T, D]`, normalised by whoever calls, to `[T, D]`. rotary: of this kind of layer."""


class Layer(Protocol):
    """A layer of a decoder: its mixers, in the order in which they run, and what it does."""

    @property
    def mixers(self) -> tuple[Mixer, ...]: ...

    def __call__(self, x: Tensor, batch: Batch, rotations: Rotations) -> Tensor:
        """Hidden states `[T, D]` to `[T, D]`."""


def kind_of(mixer: Mixer) -> str:
    """ "linear" or "full"."""
    return "linear" if isinstance(mixer.memory, LinearMemory) else "full"


def numbered(kinds: list[str] | tuple[str, ...]) -> list[tuple[str, int]]:
    """Each layer's kind with its index within that kind: a, a, b, a gives a0, a1, b0, a2."""
    return [(kind, kinds[:index].count(kind)) for index, kind in enumerate(kinds)]
