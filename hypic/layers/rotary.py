"""Positions for full-attention layers: cos and sin of the rotated dimensions, in float32."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hypic.errors import UnsupportedModelError


class RotaryPositions:
    """Turns positions `[T]` into cos, sin `[T, R/2]` for a Hugging Face text config.

    Plain, partial and scaled rotary embeddings (transformers owns the frequency formulas). For text, the
    multi-axis positions of Qwen3.5 are equal on all axes, which is the plain embedding.
    """

    def __init__(self, config: Any, rotated_dim: int | None = None, movable: bool = False) -> None:
        """rotated_dim: R where the config's head_dim does not tell; of plain rotary embeddings only. movable: what is
        rotated is moved again later (`turn`), as linear states are. Raises UnsupportedModelError for embeddings that
        cannot be moved."""
        # In float32 an angle of 1e5 radians is off by 4e-3: harmless where all keys are rotated once, as transformers
        # does it, but R(p) R(i) would not be R(p + i).
        self.angle_dtype = torch.float64 if movable else torch.float32
        with torch.device("cpu"):  # real numbers, also where the model is being built without weights
            self.frequencies, self.scale = self._frequencies(config, rotated_dim)

    @staticmethod
    def _frequencies(config: Any, rotated_dim: int | None) -> tuple[Tensor, float]:
        parameters = config.rope_parameters
        kind = parameters.get("rope_type", "default")
        if kind == "default":
            head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
            rotated = rotated_dim or int(head_dim * parameters.get("partial_rotary_factor", 1.0))
            exponent = torch.arange(0, rotated, 2, dtype=torch.float32) / rotated
            return 1.0 / parameters["rope_theta"] ** exponent, 1.0
        if rotated_dim is not None:
            raise UnsupportedModelError(f"rope type {kind!r} is not served for layers whose heads differ in width")
        if kind in ROPE_INIT_FUNCTIONS and kind not in ("dynamic", "longrope"):
            frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, device=torch.device("cpu"))
            return frequencies, float(scale)
        raise UnsupportedModelError(
            f"rope type {kind!r} rotates a key differently in texts of different lengths, so cached keys cannot be "
            "moved; served: default, linear, yarn, llama3, proportional"
        )

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos, sin float32 `[T, R/2]` of int64 positions `[T]`."""
        frequencies = self.frequencies.to(positions.device, self.angle_dtype)
        angles = positions.to(self.angle_dtype)[:, None] * frequencies[None, :]
        return angles.cos().float() * self.scale, angles.sin().float() * self.scale

    def turn(self, offset_tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """cos, sin float32 `[R/2]` that move what is rotated already by an offset, negative ones too, without scale."""
        angles = offset_tokens * self.frequencies.to(device, torch.float64)
        return angles.cos().float(), angles.sin().float()
