"""What a replayed stretch says: the fields of vLLM's and SGLang's serving benchmarks, and whether the rate was held."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hypic.eval.open_loop import Sample

ATTAINED = 0.9
"""Share of requests whose first token must come within the limit."""

GROWTH = 0.1
"""A queue grows where TTFT rises by more than so many seconds per second: arrivals are that share over capacity."""


def summarise(samples: Sequence[Sample], qps: float, limit_seconds: float) -> dict[str, Any]:
    """One point of a ladder. qps: offered. Figures are of the requests that succeeded; times are in ms."""
    good = [sample for sample in samples if not sample.error]
    begun = min(sample.due_seconds for sample in samples)
    span = max(sample.done_seconds for sample in samples) - begun
    within = sum(sample.ttft_seconds <= limit_seconds for sample in good)
    itl = [after - before for sample in good for before, after in pairwise(sample.text_seconds)]
    tpot = [
        (sample.done_seconds - sample.text_seconds[0]) / (sample.output_tokens - 1)
        for sample in good
        if sample.output_tokens > 1
    ]
    prompt_tokens = sum(sample.prompt_tokens for sample in good)
    output_tokens = sum(sample.output_tokens for sample in good)
    cached_tokens = sum(sample.cached_tokens for sample in good)
    reason = why_not_held(samples, limit_seconds)
    return {
        "qps": qps,
        "held": not reason,
        "reason": reason,
        "completed": len(good),
        "failed": len(samples) - len(good),
        "duration_seconds": span,
        "request_throughput": len(good) / span,
        "output_throughput": output_tokens / span,
        "request_goodput": within / span,
        "attained": within / len(samples),
        "ttft_growth": ttft_growth(good),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": cached_tokens,
        "cached_share": cached_tokens / prompt_tokens if prompt_tokens else 0.0,
        "ttft_ms": _spread([sample.ttft_seconds for sample in good]),
        "tpot_ms": _spread(tpot),
        "itl_ms": _spread(itl),
        "e2el_ms": _spread([sample.total_seconds for sample in good]),
        "client_lag_ms": _spread([sample.lag_seconds for sample in samples]),
    }


def why_not_held(samples: Sequence[Sample], limit_seconds: float) -> str:
    """Why a rate is not sustainable, "" if it is: no request fails, 90 % of first tokens come within the limit, and
    the queue does not grow."""
    good = [sample for sample in samples if not sample.error]
    if len(good) < len(samples):
        first = next(sample.error for sample in samples if sample.error)
        return f"{len(samples) - len(good)} failed: {first}"
    attained = sum(sample.ttft_seconds <= limit_seconds for sample in good) / len(good)
    if attained < ATTAINED:
        return f"{100 * attained:.0f} % within the limit"
    growth = ttft_growth(good)
    return f"queue grows, {growth:.2f} s/s" if growth > GROWTH else ""


def ttft_growth(samples: Sequence[Sample]) -> float:
    """Seconds by which TTFT rises per second, from the medians of the first and of the last third of the arrivals; 0
    for fewer than six requests, which show no trend."""
    third = len(samples) // 3
    if third < 2:
        return 0.0
    ordered = sorted(samples, key=lambda sample: sample.due_seconds)

    def middle(part: Sequence[Sample]) -> tuple[float, float]:
        when = float(np.median([sample.due_seconds for sample in part]))
        return when, float(np.median([sample.ttft_seconds for sample in part]))

    (began, first), (ended, last) = middle(ordered[:third]), middle(ordered[-third:])
    return (last - first) / (ended - began) if ended > began else 0.0


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Mean, median, p90 and p99 in ms, by linear interpolation; zeros where there is nothing."""
    if not seconds:
        return {"mean": 0.0, "median": 0.0, "p90": 0.0, "p99": 0.0}
    values = 1000 * np.asarray(seconds, dtype=np.float64)
    median, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return {"mean": float(values.mean()), "median": median, "p90": p90, "p99": p99}
