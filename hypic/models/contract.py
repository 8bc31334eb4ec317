"""What the engine asks of a model, and what a file in this package provides.

A model file defines `MODEL_TYPES`, the `model_type` names of Hugging Face configs that it serves, and
`build(config)`, which returns the model without weights (on the meta device when called under it). `MODEL_TYPES` ends
with the type of the text model. `TINY` holds the fields of the smallest config that shows what the architecture can do:
tests and `hypic eval parity` write random checkpoints of that shape. A `model_type` that transformers does not know
comes with `Config`, a PreTrainedConfig.
"""

from typing import Any, Protocol

from torch import Tensor

from hypic.batch import Batch
from hypic.errors import UnsupportedModelError
from hypic.linear.family import LinearFamily
from hypic.sequence import CacheSpec


class HybridModel(Protocol):
    """A hybrid-attention language model whose forward pass reads and writes memory through a `Batch`."""

    config: Any
    family: LinearFamily | None
    """Of the linear layers; None for a model that has none."""
    tied: bool
    """Whether the embedding is the output head too."""
    layer_kinds: tuple[str, ...]
    """"linear" or "full" for each layer's mixer, in order of depth: twice for a layer that holds both, not at all for a
    layer that remembers nothing."""

    def cache_spec(self) -> CacheSpec:
        """Shapes of what the model remembers."""

    def forward(self, batch: Batch) -> Tensor:
        """Normalised hidden states `[T, D]` of the batch's tokens."""

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 `[T, vocabulary]` of hidden states `[T, D]`."""

    def rotate_keys(self, keys: Tensor, positions: Tensor, out: Tensor) -> None:
        """Rotate unrotated cached keys `[F, T, HK, K]` to positions `[T]`, into `out` of the same shape."""

    def move_states(self, states: Tensor, offset_tokens: int) -> Tensor:
        """States `[..., H, K, V]` of a segment once it stands `offset_tokens` further on: the very same unless the
        linear layers rotate their keys (DESIGN 2.5)."""

    def checkpoint_name(self, name: str) -> str | None:
        """Our name of a tensor in a checkpoint, or None for one that text generation does not use."""


def require(config: Any, **served: object) -> None:
    """Refuse a config that asks for something else than what is served. Raises UnsupportedModelError naming it."""
    for name, value in served.items():
        found = getattr(config, name, value)
        if found != value:
            raise UnsupportedModelError(
                f"{config.model_type} with {name} = {found!r} is not served, only with {name} = {value!r}"
            )
