"""The bundled model before training: its shape, and a start set by hand to be an associative memory.

Four layers divide the labour. Layer 0, linear, forgets within a token and joins the words of a name. Layer 1, full
attention, looks a name up in all documents. Layer 2, linear, remembers long, and the latest value told wins. Layer 3,
full attention, carries what was found at the name in the question to the token that the answer follows. Training
(`hypic.eval.train_recall`) then moves every weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCABULARY = 3072
HIDDEN, CONTENT = 128, 64  # the embedding fills the first CONTENT of the HIDDEN dimensions, layer 0 the others
HOLDER = slice(1, CONTENT // 2)  # dimensions of names and call signs
TOLD = slice(CONTENT // 2, CONTENT - 1)  # dimensions of values; dimension 0 is the same for all tokens
IS_VALUE = CONTENT - 1  # dimension that marks values
HEAD, LINEAR_KEY, LINEAR_VALUE, LINEAR_HEADS = 64, 64, 64, 2
ROTARY = 16
ANSWER_OFFSET = 6  # tokens from the end of the name in a question to the token that the answer follows


def model_config() -> Qwen3_5TextConfig:
    half = ROTARY // 2
    return Qwen3_5TextConfig(
        architectures=["Qwen3_5ForCausalLM"],
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=4,
        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=HEAD,
        linear_num_key_heads=LINEAR_HEADS,
        linear_num_value_heads=LINEAR_HEADS,
        linear_key_head_dim=LINEAR_KEY,
        linear_value_head_dim=LINEAR_VALUE,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": ROTARY / HEAD,
            "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
            "mrope_interleaved": True,
        },
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        pad_token_id=0,
        eos_token_id=2,
    )


@dataclass(frozen=True)
class Vocabulary:
    """Words that the start knows, each one token. holders: parts of names, and call signs. values: what is told.
    answers: words that stand alone in an answer."""

    encode: Callable[[str], list[int]]
    holders: tuple[str, ...]
    values: tuple[str, ...]
    answers: tuple[str, ...]

    def token(self, word: str) -> int:
        (token,) = self.encode(word)
        return token


@torch.no_grad()
def build_model(seed: int, vocabulary: Vocabulary) -> Qwen3_5ForCausalLM:
    """A new model with the hand-set start."""
    torch.manual_seed(seed)
    model = Qwen3_5ForCausalLM(model_config())
    _set_embeddings(model.model.embed_tokens.weight, vocabulary)
    for layer in model.model.layers:
        for weight in layer.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        layer.mlp.down_proj.weight.mul_(0.3 * HIDDEN**-0.5)
    joining, lookup, memory, carrying = model.model.layers
    _set_joining(joining.linear_attn)
    _set_lookup(lookup.self_attn)
    _set_memory(memory.linear_attn)
    _set_carrying(carrying.self_attn)
    return model


def _set_embeddings(weight: Tensor, vocabulary: Vocabulary) -> None:
    """Random content; names and values in dimensions of their own; an answer's word as in the text, with its space."""
    weight.normal_(std=CONTENT**-0.5)
    weight[:, CONTENT:] *= 0.1
    for word in vocabulary.holders:
        weight[vocabulary.token(f" {word}"), TOLD] *= 0.1
        weight[vocabulary.token(f" {word}"), HOLDER] *= 2**0.5
    for word in vocabulary.values:
        weight[vocabulary.token(f" {word}"), HOLDER] *= 0.1
        weight[vocabulary.token(f" {word}"), TOLD] *= 2**0.5
    weight[:, IS_VALUE] = 0
    for word in vocabulary.values:
        weight[vocabulary.token(f" {word}"), IS_VALUE] = 4 * CONTENT**-0.5
    for word in vocabulary.answers:
        weight[vocabulary.token(word)] = weight[vocabulary.token(f" {word}")]
    weight[:, 0] = 1.5 * CONTENT**-0.5


def _read(rows: int, *parts: slice) -> Tensor:
    """[rows, HIDDEN]: random, reads the given dimensions alone."""
    matrix = torch.zeros(rows, HIDDEN)
    for part in parts:
        matrix[:, part] = torch.randn(rows, part.stop - part.start)
    return matrix / (matrix != 0).sum(1, keepdim=True).sqrt()


def _set_linear(mixer: Any) -> tuple[Tensor, int, int]:
    """What both linear layers start with: steady gates, keys and queries by one map. Returns taps [channels, 4]."""
    keys, values = LINEAR_HEADS * LINEAR_KEY, LINEAR_HEADS * LINEAR_VALUE
    mixer.in_proj_a.weight.mul_(0.1)
    mixer.in_proj_b.weight.mul_(0.1)
    mixer.in_proj_z.weight.mul_(0.1)
    mixer.in_proj_z.weight[:, 0] = 0.7
    mixer.in_proj_qkv.weight[:keys] = mixer.in_proj_qkv.weight[keys : 2 * keys] = _read(keys, HOLDER)
    taps: Tensor = mixer.conv1d.weight[:, 0]
    taps.uniform_(-0.05, 0.05)
    return taps, keys, values


def _set_joining(mixer: Any) -> None:
    """Layer 0: half its output joins the last two words, half the two words before those; its memory fades at once."""
    taps, keys, values = _set_linear(mixer)
    half, place = values // 2, CONTENT // 2
    mixer.A_log.fill_(math.log(8.0))
    mixer.dt_bias.fill_(1.0)
    taps[: 2 * keys] = 0
    taps[: 2 * keys, -1] = 1
    mixer.in_proj_qkv.weight[2 * keys :] = _read(half, HOLDER).repeat(2, 1)
    pair = torch.empty(half, 2).uniform_(0.4, 1.2) * torch.sign(torch.randn(half, 2))
    taps[2 * keys : 2 * keys + half, 2:] += pair
    taps[2 * keys + half :, :2] += pair
    taps *= 0.3
    code = torch.linalg.qr(torch.randn(half, place))[0].T * CONTENT**-0.5
    mixer.out_proj.weight.zero_()
    mixer.out_proj.weight[CONTENT : CONTENT + place, :half] = code
    mixer.out_proj.weight[CONTENT + place :, half:] = code


def _set_memory(mixer: Any) -> None:
    """Layer 2: forgets slowly; a query is made of the last two words, a key of the two before, a value of this."""
    taps, keys, values = _set_linear(mixer)
    mixer.in_proj_b.weight[:, 0] = -2.0
    mixer.in_proj_b.weight[:, IS_VALUE] = 2.0
    step = torch.exp(torch.empty_like(mixer.dt_bias).uniform_(math.log(1e-4), math.log(1e-3)))
    mixer.A_log.zero_()
    mixer.dt_bias.copy_(step + torch.log(-torch.expm1(-step)))
    pair = torch.empty(keys, 2).uniform_(0.4, 1.2)
    pair[LINEAR_KEY:, 0] = 0  # the second head goes by the last word: by a call sign, or by a last name
    taps[:keys, 2:] += pair
    taps[keys : 2 * keys, :2] += pair
    taps[2 * keys :, -1] += 1
    taps *= 0.3
    read = _read(values, TOLD)
    mixer.in_proj_qkv.weight[2 * keys :] = read
    mixer.out_proj.weight.copy_(read.T * CONTENT**-0.5)


def _set_copying(mixer: Any, *copied: slice) -> tuple[Tensor, Tensor]:
    """What both attention layers start with: they add what they find in the copied dimensions.

    Returns the weights of queries, [2, HEAD, HIDDEN], and keys, [HEAD, HIDDEN].
    """
    read = _read(HEAD, *copied)
    mixer.v_proj.weight.copy_(read)
    mixer.o_proj.weight.copy_(read.repeat(2, 1).T * CONTENT**-0.5)
    query = mixer.q_proj.weight.view(2, 2, HEAD, HIDDEN)
    query[:, 1] *= 0.1
    return query[:, 0], mixer.k_proj.weight


def _set_lookup(mixer: Any) -> None:
    """Layer 1: finds the token before which stood the two words that stand here; where there is none, this token."""
    query, key = _set_copying(mixer, HOLDER, TOLD)
    match = torch.randn(HEAD, CONTENT // 2) * (CONTENT // 2) ** -0.5
    match[:ROTARY] = 0
    query.zero_()
    key.zero_()
    query[:, :, CONTENT : CONTENT + CONTENT // 2] = match
    key[:, CONTENT + CONTENT // 2 :] = match
    key[:, CONTENT : CONTENT + CONTENT // 2] = 0.8 * match
    mixer.q_norm.weight.fill_(0.7)
    mixer.k_norm.weight.fill_(0.7)


def _set_carrying(mixer: Any) -> None:
    """Layer 3: finds the token ANSWER_OFFSET back, by rotary phase."""
    query, key = _set_copying(mixer, HOLDER, TOLD)
    half = ROTARY // 2
    phase = ANSWER_OFFSET * 10000.0 ** (-torch.arange(half) / half)
    query *= 0.1
    key *= 0.1
    query[:, :ROTARY] = 0
    key[:ROTARY] = 0
    mixer.o_proj.weight *= 2
    query[:, :half, 0] = torch.cos(phase)
    query[:, half:ROTARY, 0] = -torch.sin(phase)
    key[:half, 0] = 1
    mixer.q_norm.weight.fill_(1.0)
    mixer.k_norm.weight.fill_(1.0)
