"""Qwen3.5 text models (`qwen3_5`): gated delta net layers, and gated full attention in every fourth."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from hypic.batch import Batch
from hypic.kernels.rope.naive import rotate
from hypic.layers.attention import GatedAttention
from hypic.layers.decoder import Decoder, DecoderLayer
from hypic.layers.gated_delta_net import DeltaNetShape, GatedDeltaNet
from hypic.layers.mlp import GatedMLP
from hypic.layers.norm import RMSNorm
from hypic.layers.rotary import RotaryPositions
from hypic.linear.gated_delta_net import FAMILY
from hypic.models.contract import HybridModel
from hypic.sequence import CacheSpec

MODEL_TYPES = ("qwen3_5", "qwen3_5_text")

_UNUSED = re.compile(r"^(mtp\.|model\.visual\.|visual\.)")


class Model(nn.Module):
    """The whole text model. `mixer` and `mlp` are what the sibling architectures change."""

    family = FAMILY

    def __init__(
        self,
        config: Any,
        mixer: Callable[[int, DeltaNetShape], GatedDeltaNet] = GatedDeltaNet,
        mlp: Callable[[Any, int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.shape = _delta_net_shape(config)
        self.layer_kinds = tuple("linear" if kind == "linear_attention" else "full" for kind in config.layer_types)
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps, 1.0)
        layers = []
        for index, kind in enumerate(self.layer_kinds):
            number = self.layer_kinds[:index].count(kind)
            feed_forward = mlp(config, index) if mlp else GatedMLP(config.hidden_size, config.intermediate_size)
            token_mixer = mixer(number, self.shape) if kind == "linear" else _attention(number, config)
            layers.append(DecoderLayer(token_mixer, feed_forward, norm))
        self.model = Decoder(config.vocab_size, config.hidden_size, layers, norm())
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rotary = RotaryPositions(config)

    def forward(self, batch: Batch) -> Tensor:
        return self.model(batch, self.rotary(batch.positions))  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.lm_head.weight).float()

    def cache_spec(self) -> CacheSpec:
        config, weight = self.config, self.model.embed_tokens.weight
        return CacheSpec(
            linear_layers=self.layer_kinds.count("linear"),
            heads=self.shape.value_heads,
            key_dim=self.shape.key_dim,
            value_dim=self.shape.value_dim,
            conv_channels=self.shape.conv_channels,
            conv_width=self.shape.conv_width,
            attention_layers=self.layer_kinds.count("full"),
            kv_heads=config.num_key_value_heads,
            attention_key_dim=config.head_dim,
            attention_value_dim=config.head_dim,
            dtype=weight.dtype,
            device=weight.device,
        )

    def rotate_keys(self, keys: Tensor, positions: Tensor, out: Tensor) -> None:
        rotate(keys, *self.rotary(positions), out=out)

    def checkpoint_name(self, name: str) -> str | None:
        if _UNUSED.match(name):
            return None
        return name.replace("model.language_model.", "model.", 1)


def build(config: Any) -> HybridModel:
    """The dense text model of a Qwen3.5 config."""
    return Model(config)


def _delta_net_shape(config: Any) -> DeltaNetShape:
    return DeltaNetShape(
        hidden_size=config.hidden_size,
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        eps=config.rms_norm_eps,
    )


def _attention(layer: int, config: Any) -> GatedAttention:
    return GatedAttention(
        layer,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.rms_norm_eps,
        config.attention_bias,
    )
