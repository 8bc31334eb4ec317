"""How far an arm's next-token distributions are from those of `full`, for models whose answers say little.

A weak or random model answers wrongly in every arm; what it would say next is still the arm's or not. The prompt is
followed by a given text (teacher forcing: every arm reads the same tokens, so that one early difference does not make
all later ones incomparable), and the distributions at its positions are compared.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hypic.arms import Arm
from hypic.engine.divergence import kl_nats
from hypic.engine.engine import Engine
from hypic.eval.probe import combine
from hypic.eval.workloads import Question
from hypic.request import GenerationRequest, SamplingParams
from hypic.tokenizer import TextPart

FORCED_TOKENS = 64
"""Of a longer reference answer only the head is forced: a summary's later words add cost, and no other case."""


@dataclass(frozen=True)
class Divergence:
    """Of one question in one arm, against `full`. first_agrees: the likeliest first token is the same. kl_nats: mean
    KL(full || arm) over the positions of the reference answer. nll_nats: mean negative log-likelihood of that answer's
    tokens in this arm. tokens: how many."""

    first_agrees: bool
    kl_nats: float
    nll_nats: float
    tokens: int


@dataclass(frozen=True)
class Forced:
    """log_probabilities: float32 `[A, vocabulary]` before each of the answer's A tokens. token_ids: int64 `[A]`."""

    log_probabilities: Tensor
    token_ids: Tensor


def force(engine: Engine, question: Question, arm: Arm) -> Forced:
    """Run the prompt with its first reference answer behind it, through the arm, over what is cached under its name."""
    *context, last = question.segments(engine.tokenizer)
    answer = engine.tokenizer.encode([TextPart(question.answers[0])])[: min(FORCED_TOKENS, question.max_tokens)]
    ending = replace(last, token_ids=np.concatenate([last.token_ids, answer]))
    request = GenerationRequest("forced", (*context, ending), arm, SamplingParams(max_tokens=1), arm.name)
    logits = combine(engine, request).question_logits[len(last) - 1 : len(last) - 1 + max(1, len(answer))]
    return Forced(logits.float().log_softmax(-1), torch.from_numpy(answer).long().to(logits.device))


def compare(found: Forced, expected: Forced) -> Divergence:
    """Of an arm against `full`, over the same tokens. An answer without tokens leaves the first one to compare."""
    before = found.log_probabilities
    tokens = found.token_ids
    likelihoods = before[: len(tokens)].gather(1, tokens[:, None])
    return Divergence(
        first_agrees=bool(before[0].argmax() == expected.log_probabilities[0].argmax()),
        kl_nats=float(kl_nats(expected.log_probabilities, before).mean()),
        nll_nats=-float(likelihoods.double().mean()) if len(tokens) else 0.0,
        tokens=len(tokens),
    )
