"""What prefilling a segment costs: predicted seconds from its length, fitted on the engine that will do it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

PROBE_TOKENS = (64, 256, 768)
"""Lengths that are timed at start-up; a probe slower than `PROBE_LIMIT_SECONDS` is the last one."""

PROBE_LIMIT_SECONDS = 0.5


@dataclass(frozen=True)
class CostModel:
    """Seconds to prefill n tokens alone: per_token·n + per_token_squared·n²."""

    per_token: float
    per_token_squared: float = 0.0

    def seconds(self, tokens: int) -> float:
        """Predicted time of one segment."""
        return self.per_token * tokens + self.per_token_squared * tokens * tokens


def fit_cost(tokens: Sequence[int], seconds: Sequence[float]) -> CostModel:
    """Least squares on relative errors, both terms kept at or above zero so that longer never costs less."""
    if not tokens or min(tokens) < 1 or min(seconds) <= 0:
        raise ValueError(f"a cost needs timings of at least one token, found {list(tokens)} tokens, {list(seconds)} s")
    lengths, times = np.asarray(tokens, dtype=float), np.asarray(seconds, dtype=float)
    terms = np.stack([lengths, lengths**2], axis=1) / times[:, None]
    linear, squared = _non_negative(terms)
    return CostModel(linear, squared)


def measure_cost(build: Callable[[int], float], longest_tokens: int) -> CostModel:
    """Fit the cost of `build`, which prefills that many tokens and returns the seconds it took.

    The shortest probe runs once more in front, since a first call also pays for what is allocated only once.
    """
    lengths = [tokens for tokens in PROBE_TOKENS if tokens <= longest_tokens] or [max(longest_tokens, 1)]
    build(lengths[0])
    timed: list[tuple[int, float]] = []
    for tokens in lengths:
        timed.append((tokens, min(build(tokens), build(tokens))))
        if timed[-1][1] > PROBE_LIMIT_SECONDS:
            break
    return fit_cost([tokens for tokens, _ in timed], [max(seconds, 1e-9) for _, seconds in timed])


def _non_negative(terms: np.ndarray) -> tuple[float, float]:
    """Both factors >= 0 that bring `terms @ factors` closest to 1. Two unknowns: where the free solution has a
    negative factor, the best one lies on an axis."""
    ones = np.ones(len(terms))
    if len(terms) > 1:
        free = np.linalg.lstsq(terms, ones, rcond=None)[0]
        if free.min() >= 0:
            return float(free[0]), float(free[1])
    axes = [float(terms[:, axis] @ ones / (terms[:, axis] @ terms[:, axis])) for axis in (0, 1)]
    if len(terms) == 1:
        return axes[0], 0.0
    errors = [float(np.square(terms[:, axis] * axes[axis] - 1).sum()) for axis in (0, 1)]
    return (axes[0], 0.0) if errors[0] <= errors[1] else (0.0, axes[1])
