"""Quality: the harness scores what it is given, runs every arm as the engine alone would, and sees a broken arm."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_checkpoint
from faults import (
    Plant,
    dropped_seam,
    stale_keys_and_values,
    swapped_segments,
    wrong_rotation,
    zeroed_transition,
)

from hypic.arms import ARMS, arm_named
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval import quality
from hypic.eval.answering import answer_all
from hypic.eval.quality import run_quality
from hypic.eval.quality_report import Result, score_arms
from hypic.eval.settings import QualityConfig
from hypic.eval.workloads import Question, question_sets
from hypic.request import GenerationRequest, SamplingParams


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> Engine:
    return Engine(EngineConfig(model=tiny_checkpoint, threads=1))


def results(texts: list[str], agrees: bool = True, kl: float = 0.0, nll: float = 1.0) -> list[Result]:
    return [Result(text, 100, 60, agrees, kl, nll, tokens=2) for text in texts]


def test_scores_losses_and_changes() -> None:
    questions = [Question((), "?", (answer, "other"), max_tokens=1) for answer in ("red", "green", "blue", "grey")]
    answers = {
        "full": results(["Red.", "green", "the blue", "no"]),
        "hypic": results(["red", "green", "no", "grey"]),
        "addition": results(["x"] * 4, agrees=False, kl=0.5, nll=3.0),
    }
    scores = score_arms(questions, answers, seed=0)
    assert scores["full"] | {"score": 75.0, "n": 4, "lost_points": 0.0, "changed": 0} == scores["full"]
    assert scores["hypic"]["score"] == 75.0
    assert scores["hypic"]["changed"] == 3, "texts are compared as they are, also where the score is the same"
    low, high = scores["hypic"]["lost_interval"]
    assert low < 0 < high, "one question lost and one won: nothing can be said"
    assert scores["hypic"]["verdict"] == "no difference shown"
    assert scores["addition"]["lost_points"] == 75.0
    assert scores["addition"]["lost_percent"] == 100.0
    assert scores["addition"]["verdict"] == "loses"
    assert scores["addition"]["cached_share"] == 0.6
    apart = scores["addition"]["divergence"]
    assert (apart["first_token_agreement"], apart["kl_nats"], apart["nll_gained_nats"]) == (0.0, 0.5, 2.0)
    assert apart["verdict"] == "loses"


def test_a_set_is_scored_by_its_own_metric() -> None:
    text = "the cat sat on the mat"
    short = score_arms([Question((), "?", ("cat mat",), 8, metric="f1")], {"full": results([text])}, seed=0)["full"]
    assert short["score"] == short["f1"] == pytest.approx(100 * 2 * 2 / (4 + 2))
    assert short["exact_match"] == 0.0
    long = score_arms([Question((), "?", (text,), 8, metric="rouge_l")], {"full": results([text])}, seed=0)["full"]
    assert long["score"] == long["rouge_l"] == pytest.approx(100.0)
    assert "f1" not in long


@pytest.mark.parametrize("name", ["full", "hypic"])
def test_batched_answers_are_those_of_single_requests(engine: Engine, name: str) -> None:
    questions = question_sets("recall", 3, 2, seed=0)["plain"]
    arm = arm_named(name)
    expected = []
    for number, question in enumerate(questions):
        sampling = SamplingParams(max_tokens=question.max_tokens)
        request = GenerationRequest(f"single-{number}", question.segments(engine.tokenizer), arm, sampling, "single")
        expected.append("".join(output.text for output in engine.generate(request)))
    for cold in ((), [frozenset[int]()] * 3, [frozenset({1})] * 3):
        engine.segments.clear()
        found = answer_all(engine, questions, arm, cold)
        assert [answer.text for answer in found] == expected
    assert engine.idle


def test_report_has_every_set_and_arm(engine: Engine) -> None:
    report = run_quality(engine, QualityConfig(limit=1, documents=2), list(ARMS))
    assert set(report.results["sets"]) == {"plain", "overwritten", "border", "two_hop"}
    for scores in report.results["sets"].values():
        assert set(scores) == set(ARMS)
        assert all(0 <= score["score"] <= 100 and score["n"] == 1 for score in scores.values())
        assert scores["full"]["divergence"]["kl_nats"] == 0.0
        assert scores["prefix"]["divergence"]["kl_nats"] < 1e-6
        assert scores["prefix"]["changed"] == 0, "prefix reuse is exact"
        assert scores["hypic"]["divergence"]["kl_nats"] > 1e-6
    assert len(report.tables) == 9, "one of all sets, and two a set"
    assert set(report.results["means"]) == set(ARMS)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """Four short questions over two documents, and one that is too long for the model."""
    path = tmp_path / "rows.jsonl"
    texts = [[f"Document {n}.{m} says this and that of it." for m in range(2)] for n in range(4)] + [["long " * 1000]]
    records = [{"question": "Which?", "documents": found, "answers": ["that"]} for found in texts]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_cold_share_says_what_was_met_before(engine: Engine, rows: str) -> None:
    shares = {}
    for cold in (0.0, 0.5, 1.0):
        report = run_quality(engine, QualityConfig(rows, limit=2, cold_share=cold), ["hypic"])
        shares[cold] = report.results["sets"]["rows"]["hypic"]["cached_share"]
    assert shares[0.0] > shares[0.5] > shares[1.0], shares
    assert engine.idle


def test_the_same_seed_gives_the_same_results(tiny_checkpoint: Path, rows: str) -> None:
    """On engines of their own; another seed draws other questions."""
    first, again, other = (
        run_quality(
            Engine(EngineConfig(model=tiny_checkpoint, threads=1)),
            QualityConfig(rows, limit=2, seed=seed, shuffle=True, cold_share=0.5),
            ["hypic"],
        ).results
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first["questions_fingerprint"] != other["questions_fingerprint"]


def test_full_is_always_run_and_prompts_that_are_too_long_are_counted(engine: Engine, rows: str) -> None:
    report = run_quality(engine, QualityConfig(rows, limit=5), ["prefix"])
    scores = report.results["sets"]["rows"]
    assert list(scores) == ["full", "prefix"]
    assert scores["full"]["n"] == 4
    assert report.results["too_long"]["rows"] == 1


def test_faults_of_the_user_are_named(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="no arm 'hypik'"):
        run_quality(engine, QualityConfig(limit=1, documents=2), ["hypik"])
    with pytest.raises(InvalidRequestError, match="fits the model's"):
        run_quality(engine, QualityConfig("hotpotqa", limit=3), ["hypic"])
    for wrong in ({"cold_share": 1.5}, {"limit": 0}, {"documents": -1}):
        with pytest.raises(ValueError, match="must be"):
            QualityConfig(**wrong)


ASKED = 20
"""Questions of a set: enough for the loss of a dropped seam, a fifth of `border`, to stand out of the noise."""


@pytest.fixture(scope="module")
def bundled() -> Callable[[Plant | None, str], dict[str, Any]]:
    """Scores of `hypic` on the bundled model over one set, on a fresh engine with a fault in it."""

    def scores(plant: Plant | None, name: str) -> dict[str, Any]:
        engine = Engine(EngineConfig(threads=1))
        with pytest.MonkeyPatch.context() as monkeypatch:
            if plant is not None:
                plant(engine, monkeypatch)
            questions = question_sets("recall", ASKED, 8, seed=0)[name]
            found = quality._run_group(
                engine, QualityConfig(), ["full", "hypic"], name, questions, range(ASKED), lambda arm: None
            )
        both = {arm: [found[name, number, arm] for number in range(ASKED)] for arm in ("full", "hypic")}
        hypic: dict[str, Any] = score_arms(questions, both, seed=0)["hypic"]
        return hypic

    return scores


@pytest.mark.parametrize("name", ["overwritten", "border"])
def test_a_sound_arm_is_not_said_to_lose(bundled: Callable[[Plant | None, str], dict[str, Any]], name: str) -> None:
    found = bundled(None, name)
    assert found["verdict"] != "loses"
    assert found["lost_points"] <= 0.5
    assert found["divergence"]["kl_nats"] < 0.05


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (dropped_seam, "border"),
        (zeroed_transition, "overwritten"),
        (swapped_segments, "overwritten"),
        (stale_keys_and_values, "two_hop"),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_a_broken_arm_is_said_to_lose(
    bundled: Callable[[Plant | None, str], dict[str, Any]], plant: Plant, name: str
) -> None:
    found = bundled(plant, name)
    assert found["divergence"]["verdict"] == "loses", found
    assert found["divergence"]["kl_nats"] > 0.2
    assert found["lost_points"] >= 10
    if plant is not stale_keys_and_values:  # of 20 answers three fail: the states remember what the keys lost
        assert found["verdict"] == "loses"


def test_a_wrong_rotation_shows_in_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model answers nothing right, so no score can fall; its distributions move all the same. Of one layer of
    full attention, reuse is exact: what moves is the fault."""
    path = write_checkpoint(tmp_path / "full", num_hidden_layers=1, layer_types=["full_attention"])
    apart = []
    for plant in (None, wrong_rotation):
        engine = Engine(EngineConfig(model=path, threads=1))
        if plant is not None:
            plant(engine, monkeypatch)
        question = question_sets("recall", 1, 2, seed=0)["plain"]
        arms = ["full", "hypic"]
        found = quality._run_group(engine, QualityConfig(), arms, "plain", question, range(1), lambda arm: None)
        apart.append(found["plain", 0, "hypic"].kl_nats)
    assert apart[0] < 1e-9
    assert apart[1] > 1e-6
