"""Percentiles against numpy, throughput and goodput by hand, and the three reasons why a rate is not sustainable."""

import numpy as np
import pytest

from hypic.eval.load_metrics import summarise, ttft_growth, why_not_held
from hypic.eval.open_loop import Sample


def answered(due: float, ttft: float, pieces: int = 3, gap: float = 0.1) -> Sample:
    times = [due + ttft + number * gap for number in range(pieces)]
    return Sample(due, due + 0.002, times, times[-1] + 0.05, "text", 100, pieces, 60)


def test_percentiles_are_numpys() -> None:
    ttfts = np.random.default_rng(0).exponential(0.2, 37)
    point = summarise([answered(float(n), float(t)) for n, t in enumerate(ttfts)], qps=1.0, limit_seconds=1.0)
    found = point["ttft_ms"]
    assert found["mean"] == pytest.approx(1000 * ttfts.mean())
    assert found["median"] == pytest.approx(1000 * np.percentile(ttfts, 50))
    assert found["p90"] == pytest.approx(1000 * np.percentile(ttfts, 90))
    assert found["p99"] == pytest.approx(1000 * np.percentile(ttfts, 99))


def test_fields_of_a_point() -> None:
    samples = [answered(0.0, 0.5), answered(1.0, 1.5), Sample(2.0, 2.0, done_seconds=4.0, error="status 503: busy")]
    point = summarise(samples, qps=1.0, limit_seconds=1.0)
    assert (point["completed"], point["failed"], point["held"]) == (2, 1, False)
    assert point["reason"].startswith("1 failed: status 503")
    assert point["duration_seconds"] == pytest.approx(4.0)
    assert point["request_throughput"] == pytest.approx(2 / 4.0)
    assert point["request_goodput"] == pytest.approx(1 / 4.0)
    assert point["output_throughput"] == pytest.approx(6 / 4.0)
    assert point["cached_share"] == pytest.approx(0.6)
    assert point["itl_ms"]["mean"] == pytest.approx(100)
    assert point["tpot_ms"]["median"] == pytest.approx(1000 * 0.25 / 2)
    assert point["e2el_ms"]["p99"] == pytest.approx(1000 * (0.75 + 0.99 * 1.0))
    assert point["client_lag_ms"]["mean"] == pytest.approx(1000 * 0.004 / 3)


def test_nine_of_ten_within_the_limit() -> None:
    steady = [answered(float(n), 0.5) for n in range(18)]
    assert why_not_held([*steady, answered(18.0, 9.0), answered(19.0, 9.0)], 1.0) == ""
    assert "86 %" in why_not_held([*steady, *(answered(18.0 + n, 9.0) for n in range(3))], 1.0)


def test_a_growing_queue_is_seen_within_the_limit() -> None:
    growing = [answered(n / 10, 0.1 + 0.02 * n) for n in range(30)]
    assert ttft_growth(growing) == pytest.approx(0.2)
    assert why_not_held(growing, limit_seconds=5.0) == "queue grows, 0.20 s/s"
    assert ttft_growth(growing[:5]) == 0.0, "five requests show no trend"
