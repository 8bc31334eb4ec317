"""What one more warm document costs: what is timed is what is said, and differences are taken within a round."""

from pathlib import Path

import pytest

from hypic.config import EngineConfig
from hypic.eval import compose_bench
from hypic.eval.compose_bench import figures, run_compose
from hypic.eval.ttft import GateError

CONFIG = EngineConfig(threads=1)


def test_report_of_a_small_run(tiny_checkpoint: Path) -> None:
    report = run_compose(CONFIG, tiny_checkpoint, documents=3, more=2, document_tokens=120, rounds=2, seed=0)
    results = report.results
    assert {"warm_segment_ms", "recompute_segment_ms", "ratio", "gate"} <= results.keys()
    computed = results["tokens_computed"]
    assert computed["more"] - computed["base"] == 2 * results["seam_tokens"] == 16
    assert computed["recompute"] - computed["base"] == pytest.approx(results["document_tokens"], abs=10)
    assert results["segment_bytes"]["all"] > sum(
        results["segment_bytes"][name] for name in ("operators", "keys_and_values", "convolution_tails")
    )
    assert report.as_dict()["command"] == "hypic bench compose"


def test_figures_are_medians_of_differences_within_rounds() -> None:
    seconds = {"base": [1.0, 2.0, 9.0], "more": [1.4, 2.4, 9.0], "recompute": [11.0, 12.0, 9.5]}
    found = figures(seconds, more=4)
    assert found["warm_segment_ms"] == pytest.approx(100.0)
    assert found["recompute_segment_ms"] == pytest.approx(10_000.0)
    assert found["ratio"] == pytest.approx(100.0)


def test_nothing_cold_is_timed_as_warm(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose_bench, "_warm", lambda workload: [])
    with pytest.raises(GateError, match="not cached"):
        run_compose(CONFIG, tiny_checkpoint, documents=2, more=1, document_tokens=120, rounds=1, seed=0)
