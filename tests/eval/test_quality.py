"""Quality: the harness scores what it is given, runs every arm as the engine alone would, and sees a broken arm."""

from pathlib import Path

import pytest

from hypic.arms import ARMS, arm_named
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.errors import InvalidRequestError
from hypic.eval.quality import answer_all, run_quality, score_arms
from hypic.eval.workloads import Question, question_sets
from hypic.request import GenerationRequest, SamplingParams


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Path) -> Engine:
    return Engine(EngineConfig(model=tiny_checkpoint, threads=1))


def test_scores_losses_and_changes() -> None:
    questions = [Question((), "?", (answer, "other"), max_tokens=1) for answer in ("red", "green", "blue", "grey")]
    answers = {
        "full": ["Red.", "green", "the blue", "no"],
        "hypic": ["red", "green", "no", "grey"],
        "addition": ["x"] * 4,
    }
    scores = score_arms(questions, answers, seed=0)
    assert scores["full"] | {"score": 75.0, "n": 4, "lost_points": 0.0, "changed": 0} == scores["full"]
    assert scores["hypic"]["score"] == 75.0
    assert scores["hypic"]["changed"] == 3, "texts are compared as they are, also where the score is the same"
    low, high = scores["hypic"]["lost_interval"]
    assert low < 0 < high, "one question lost and one won: nothing can be said"
    assert scores["addition"]["lost_points"] == 75.0
    assert scores["addition"]["lost_percent"] == 100.0


@pytest.mark.parametrize("name", ["full", "hypic"])
def test_batched_answers_are_those_of_single_requests(engine: Engine, name: str) -> None:
    questions = question_sets("recall", 3, 2, seed=0)["plain"]
    arm = arm_named(name)
    expected = []
    for number, question in enumerate(questions):
        sampling = SamplingParams(max_tokens=question.max_tokens)
        request = GenerationRequest(f"single-{number}", question.segments(engine.tokenizer), arm, sampling, "single")
        expected.append("".join(output.text for output in engine.generate(request)))
    assert answer_all(engine, questions, arm) == expected
    assert engine.idle


def test_report_has_every_set_and_arm(engine: Engine) -> None:
    report = run_quality(engine, "recall", list(ARMS), limit=1, documents=2, seed=0)
    assert set(report.results["sets"]) == {"plain", "overwritten", "border", "two_hop"}
    for scores in report.results["sets"].values():
        assert set(scores) == set(ARMS)
        assert all(0 <= score["score"] <= 100 and score["n"] == 1 for score in scores.values())
    assert len(report.tables) == 5, "one of all sets, and one a set"
    assert set(report.results["means"]) == set(ARMS)


def test_full_is_always_run_and_prompts_that_are_too_long_are_counted(engine: Engine) -> None:
    report = run_quality(engine, "hotpotqa", ["prefix"], limit=6, documents=5, seed=0)
    scores = report.results["sets"]["hotpotqa"]
    assert list(scores) == ["full", "prefix"]
    assert scores["full"]["n"] + report.results["too_long"]["hotpotqa"] == 6
    assert report.results["too_long"]["hotpotqa"] > 0, "five paragraphs in bytes exceed 4096 tokens now and then"


def test_faults_of_the_user_are_named(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="no arm 'hypik'"):
        run_quality(engine, "recall", ["hypik"], limit=1, documents=2, seed=0)
    with pytest.raises(InvalidRequestError, match="fits the model's"):
        run_quality(engine, "hotpotqa", ["hypic"], limit=3, documents=10, seed=0)
