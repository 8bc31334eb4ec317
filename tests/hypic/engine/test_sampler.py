"""Choosing tokens against plain arithmetic: penalties, bias, cuts of the distribution, seeds, extremes."""

from collections import Counter

import numpy as np
import pytest
import torch

from hypic.arms import ARMS
from hypic.engine.sampler import Sampler, log_probabilities
from hypic.errors import InvalidRequestError
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Segment

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])
DRAWS = 4000


def sampler(
    choice: int = 0, prompt: tuple[int, ...] = (4,), ends: frozenset[int] = frozenset(), **params: object
) -> Sampler:
    segment = Segment("question", np.asarray(prompt, dtype=np.int32))
    request = GenerationRequest("r", (segment,), ARMS["full"], SamplingParams(**params))  # type: ignore[arg-type]
    return Sampler(request, choice, ends)


def shares(chooser: Sampler) -> np.ndarray:
    drawn = Counter(chooser.choose(LOGITS) for _ in range(DRAWS))
    return np.asarray([drawn[token] / DRAWS for token in range(len(LOGITS))])


def expected(keep: list[int], temperature: float = 1.0) -> np.ndarray:
    weights = np.exp(LOGITS.numpy() / temperature)
    weights[[token for token in range(len(LOGITS)) if token not in keep]] = 0
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize(
    ("params", "keep", "temperature"),
    [
        ({"temperature": 1.0}, [0, 1, 2, 3, 4], 1.0),
        ({"temperature": 0.5}, [0, 1, 2, 3, 4], 0.5),
        ({"temperature": 1.0, "top_k": 2}, [0, 1], 1.0),
        ({"temperature": 1.0, "top_k": 99}, [0, 1, 2, 3, 4], 1.0),
        ({"temperature": 1.0, "top_p": 0.8}, [0, 1], 1.0),
        ({"temperature": 1.0, "min_p": 0.2}, [0, 1, 2], 1.0),
        ({"temperature": 1.0, "top_k": 3, "min_p": 0.3}, [0, 1], 1.0),
    ],
)
def test_draws_follow_the_cut_distribution(params: dict[str, float], keep: list[int], temperature: float) -> None:
    found = shares(sampler(seed=1, **params))
    assert np.abs(found - expected(keep, temperature)).max() < 4 * np.sqrt(0.25 / DRAWS)
    assert found[[token for token in range(5) if token not in keep]].sum() == 0


def test_penalties_are_openais() -> None:
    """mu[j] - count[j] * frequency - (count[j] > 0) * presence, greedily."""
    chooser, counts = sampler(frequency_penalty=0.37, presence_penalty=0.3), np.zeros(5)
    for _ in range(8):
        token = chooser.choose(LOGITS)
        assert token == int(np.argmax(LOGITS.numpy() - 0.37 * counts - 0.3 * (counts > 0)))
        counts[token] += 1
    assert (counts > 0).sum() > 1
    assert torch.equal(LOGITS, torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0]))


def test_repetition_counts_prompt_and_answer() -> None:
    chooser = sampler(prompt=(0, 0, 3), repetition_penalty=2.0)
    assert chooser.choose(LOGITS) == 0  # 2.0 / 2 = 1.0, first of two equal ones
    assert sampler(prompt=(0,), repetition_penalty=1.99).choose(LOGITS - 0.1) == 0
    assert sampler(prompt=(0, 1), repetition_penalty=2.0).choose(torch.tensor([0.6, 0.5, 0.4])) == 2
    assert sampler(prompt=(0,), repetition_penalty=2.0).choose(torch.tensor([-0.5, -0.9])) == 1


def test_bias_moves_the_choice() -> None:
    assert sampler(logit_bias=((4, 6.0),)).choose(LOGITS) == 4
    assert sampler(logit_bias=((0, -100.0),)).choose(LOGITS) == 1


def test_no_end_before_min_tokens() -> None:
    chooser = sampler(ends=frozenset({0}), min_tokens=2)
    assert [chooser.choose(LOGITS) for _ in range(3)] == [1, 1, 0]


def test_each_choice_has_a_seed_of_its_own_and_the_first_has_the_requests() -> None:
    def drawn(choice: int, seed: int) -> list[int]:
        chooser = sampler(choice, temperature=1.0, seed=seed)
        return [chooser.choose(LOGITS) for _ in range(20)]

    assert drawn(0, 7) == drawn(0, 7)
    assert drawn(1, 7) == drawn(0, 8)
    assert drawn(0, 7) != drawn(1, 7)
    assert drawn(1, 2**63 - 1)
    assert drawn(0, -1)


@pytest.mark.parametrize("temperature", [1e-45, 1e-40, 1e-20, 1e-6, 1e-5])
def test_a_tiny_temperature_is_greedy_and_no_fault(temperature: float) -> None:
    assert sampler(temperature=temperature, seed=0, top_p=0.5).choose(LOGITS) == 0


def test_log_probabilities_are_the_models() -> None:
    logprob, top = log_probabilities(LOGITS, 3, 2)
    logs = torch.log_softmax(LOGITS.double(), 0)
    assert logprob == pytest.approx(float(logs[3]), abs=1e-6)
    assert [token for token, _ in top] == [0, 1]
    assert [value for _, value in top] == pytest.approx(logs[:2].tolist(), abs=1e-6)
    assert len(log_probabilities(LOGITS, 0, 99)[1]) == 5
    assert log_probabilities(LOGITS, 0, 0)[1] == ()


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": -1},
        {"min_p": 1.5},
        {"presence_penalty": 3.0},
        {"frequency_penalty": float("nan")},
        {"temperature": float("nan")},
        {"repetition_penalty": 0.0},
        {"logit_bias": ((1, 101.0),)},
        {"min_tokens": 9, "max_tokens": 8},
        {"logprobs": -1},
    ],
)
def test_what_makes_no_sense_is_refused(params: dict[str, float]) -> None:
    with pytest.raises(InvalidRequestError):
        SamplingParams(**params)  # type: ignore[arg-type]
