"""Scores of answers, and how far to trust their means. Plain functions over texts and numbers.

Normalisation, exact match and token F1 are those of SQuAD (arXiv 1606.05250): lower case, no punctuation, no English
articles, single spaces; the best over all accepted answers counts. ROUGE-L is that of the package rouge-score.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hypic.errors import InvalidRequestError

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """The text as SQuAD compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, answer: str) -> float:
    """1 where both are the same once normalised, else 0."""
    return float(normalise_answer(prediction) == normalise_answer(answer))


def token_f1(prediction: str, answer: str) -> float:
    """Harmonic mean of precision and recall over words, 0 to 1; two empty texts score 1, as in SQuAD 2.0."""
    found, expected = normalise_answer(prediction).split(), normalise_answer(answer).split()
    if not found or not expected:
        return float(found == expected)
    common = sum((Counter(found) & Counter(expected)).values())
    return 2 * common / (len(found) + len(expected))


def rouge_l(prediction: str, answer: str) -> float:
    """F measure of the longest common subsequence of stemmed words, 0 to 1 (Lin 2004). Raises InvalidRequestError where
    the package rouge-score is missing."""
    return float(_rouge().score(answer, prediction)["rougeL"].fmeasure)


def best_over(score: Callable[[str, str], float], prediction: str, answers: Sequence[str]) -> float:
    """The best score over accepted answers. Raises ValueError where there is none to compare with."""
    if not answers:
        raise ValueError("no accepted answer to score against")
    return max(score(prediction, answer) for answer in answers)


def bootstrap_interval(
    values: Sequence[float], seed: int = 0, resamples: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean (Efron 1979): resample the values, keep the middle of the means.

    A single value, or equal ones, give an interval without width: it says that nothing varied, not that nothing can.
    """
    array: npt.NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    if not len(array):
        raise ValueError("no values to resample")
    draws = np.random.default_rng(seed).integers(0, len(array), size=(resamples, len(array)))
    low, high = np.quantile(array[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def relative_drop(reference: float, score: float) -> float:
    """Percent of the reference that is lost, 0 where the reference is 0."""
    return 100 * (reference - score) / reference if reference else 0.0


@cache
def _rouge() -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]
    except ImportError as error:
        raise InvalidRequestError(
            f"summaries are scored by the package rouge-score, which is missing ({error}): pip install 'hypic[eval]'"
        ) from error
    return RougeScorer(["rougeL"], use_stemmer=True)
