"""Drift probes: the right figure, in idle time alone, and without a trace in any cache."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

from hypic.engine import drift
from hypic.engine.divergence import kl_nats
from hypic.engine.drift import DriftReport

DOCUMENTS = [3, 1, 2]


def probed(bench: Any, arm: str = "hypic", salt: str = "") -> Any:
    return replace(bench.request(bench.prompt(DOCUMENTS), arm, salt), probe=True)


def measured(engine: Any) -> DriftReport:
    """Step until nothing is left; everything that was reported."""
    found = [engine.probe_drift()]
    while found[-1].left:
        found.append(engine.probe_drift())
    return DriftReport(
        tuple(one for report in found for one in report.measured), sum(report.dropped for report in found), 0
    )


@pytest.mark.parametrize("arm", ["hypic", "addition"])
def test_the_figure_is_that_of_two_whole_runs(arm: str, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "PIECE_TOKENS", 50)  # 265 tokens in six pieces
    bench.tokens(probed(bench, arm))
    (found,) = measured(bench.engine).measured
    full, served = (bench.logits(bench.request(bench.prompt(DOCUMENTS), each))[-1] for each in ("full", arm))
    assert found.kl_nats == pytest.approx(float(kl_nats(full[None], served[None])), rel=1e-3, abs=1e-9)
    assert found.kl_nats > 1e-7
    assert found.first_agrees == bool(full.argmax() == served.argmax())
    assert (found.arm, found.prompt_tokens) == (arm, sum(len(part) for part in bench.prompt(DOCUMENTS)))


def test_no_cache_is_read_or_written(bench: Any) -> None:
    bench.tokens(probed(bench))
    engine = bench.engine
    before = asdict(engine.segments.stats), asdict(engine.prefixes.stats)
    assert len(measured(engine).measured) == 1
    assert (asdict(engine.segments.stats), asdict(engine.prefixes.stats)) == before
    engine.check()


def test_answers_do_not_depend_on_probes(make_bench: Callable[..., Any]) -> None:
    answers = []
    for probe in (True, False):
        bench = make_bench()
        first = replace(probed(bench), probe=probe)
        told = [bench.tokens(first)]
        measured(bench.engine)
        again = bench.request(bench.prompt(DOCUMENTS))
        outputs = list(bench.engine.generate(again))
        answers.append((told, [output.token_id for output in outputs], outputs[-1].usage))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("arm", ["full", "prefix"])
def test_what_is_exact_is_not_probed(arm: str, bench: Any) -> None:
    bench.tokens(probed(bench, arm))
    assert measured(bench.engine) == DriftReport((), 0, 0)
    bench.tokens(bench.request(bench.prompt(DOCUMENTS)))
    assert measured(bench.engine) == DriftReport((), 0, 0)


def test_a_request_that_comes_in_has_right_of_way(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift, "PIECE_TOKENS", 50)
    for salt in ("a", "b"):
        bench.tokens(probed(bench, salt=salt))
    assert bench.engine.probe_drift() == DriftReport((), 0, 2)
    request = bench.request(bench.prompt([5]))
    bench.engine.build_here(task.key for task in bench.engine.submit(request))
    assert bench.engine.drift._pass is None, "its memory is free at once"
    assert bench.engine.probe_drift() == DriftReport((), 1, 1)
    while not bench.engine.idle:
        assert bench.engine.probe_drift() == DriftReport((), 0, 1)
        assert bench.engine.drift._pass is None, "nothing is computed while a request is open"
        bench.engine.step()
    assert len(measured(bench.engine).measured) == 1, "what was not under way is measured later"


def test_probes_that_wait_are_bounded(bench: Any) -> None:
    for number in range(drift.KEPT_PROBES + 2):
        bench.tokens(probed(bench, salt=str(number)))
    found = measured(bench.engine)
    assert (len(found.measured), found.dropped) == (drift.KEPT_PROBES, 2)


def test_a_probe_that_fails_is_dropped(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.tokens(probed(bench))

    def no_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(bench.engine.model, "forward", no_memory)
        assert bench.engine.probe_drift() == DriftReport((), 1, 0)
    assert bench.tokens(bench.request(bench.prompt(DOCUMENTS)))
