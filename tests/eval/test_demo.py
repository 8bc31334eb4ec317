"""The demo: its stories stay true in another order, and both parts tell what a service really did."""

import time
from pathlib import Path

import pytest

from hypic.arms import arm_named
from hypic.config import EngineConfig
from hypic.engine.engine import Engine
from hypic.eval import demo
from hypic.eval.recall import PEOPLE
from hypic.request import GenerationRequest
from hypic.router.cluster import Completion
from hypic.router.record import BuildRecord, RequestRecord
from hypic.tokenizer import PromptTokenizer

ARMS = [arm_named(name) for name in ("full", "addition", "hypic")]


class OneEngine:
    """A service without a cluster: one engine that builds what is cold itself."""

    def __init__(self, path: Path) -> None:
        self.engine = Engine(EngineConfig(model=path, threads=1))

    @property
    def tokenizer(self) -> PromptTokenizer:
        return self.engine.tokenizer

    def complete(self, request: GenerationRequest) -> Completion:
        began = time.perf_counter()
        outputs = list(self.engine.generate(request))
        last = outputs[-1]
        assert last.finish_reason is not None
        record = RequestRecord(request.request_id, "here", ttft_seconds=time.perf_counter() - began, plan=last.plan)
        record.builds += [
            BuildRecord(row.key, row.tokens, "here", 0.001, 0.002, 0.0, 100, 0.002)
            for row in last.plan.rows
            if row.builds
        ]
        tokens = tuple(output.token_id for output in outputs if output.token_id is not None)
        text = "".join(output.text for output in outputs)
        return Completion(text, tokens, last.usage, last.plan, last.finish_reason, record)


@pytest.fixture(scope="module")
def client(tiny_checkpoint: Path) -> demo.Client:
    return demo.Client(OneEngine(tiny_checkpoint))


def test_stories_stay_true_in_another_order() -> None:
    for story in demo.stories(30, documents=8, new_documents=2, seed=0):
        person = next(name for name in PEOPLE["test"] if name in story.question)
        telling = [section for section in story.cold if person in section]
        assert len(telling) >= 1
        assert [section for section in story.warm if person in section] == telling, "the change still comes last"
        assert story.answer in telling[-1]
        assert set(story.cold) < set(story.warm)
        assert story.warm[:8] != story.cold


def test_recall_part_tells_what_was_done(
    client: demo.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "QUESTIONS", 2)
    told = demo.tell_recall(client, ARMS)
    out = capsys.readouterr().out
    assert "Cold: who prefilled what" in out
    assert "Plan of arm hypic" in out
    assert "document 3" in out
    assert "new document" in out
    assert told["cold"]["built_tokens"] > 0
    assert told["warm"]["hypic"]["cached_tokens"] > told["warm"]["hypic"]["computed_tokens"] > 0
    assert told["warm"]["full"]["computed_tokens"] == told["warm"]["full"]["prompt_tokens"]
    assert set(told["right"]) == {"full", "addition", "hypic"}
    assert all(0 <= right <= 2 for right in told["right"].values())


def test_hotpotqa_part_fits_the_model_and_is_warm(
    client: demo.Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "ROUNDS", 2)
    told = demo.tell_hotpotqa(client, ARMS, max_tokens=2000)
    assert 1 <= told["documents"] < 10
    assert told["warm"]["hypic"]["prompt_tokens"] <= 2000
    assert told["warm"]["hypic"]["built_tokens"] == 0 < told["cold"]["built_tokens"]
    assert "cannot answer real questions" in " ".join(capsys.readouterr().out.split())


@pytest.mark.cluster
def test_the_whole_demo_on_a_cluster(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hypic.config import ClusterConfig

    monkeypatch.setattr(demo, "QUESTIONS", 1)
    monkeypatch.setattr(demo, "ROUNDS", 1)
    config = EngineConfig(model=tiny_checkpoint, threads=1)
    report = demo.run_demo(config, ClusterConfig(scatter_workers=2), ["full", "hypic"])
    builds = report.results["recall"]["cold"]["timings"]["builds"]
    assert {build["worker"] for build in builds} <= {"scatter-0", "scatter-1", "combine-0"}
    assert not any(build["fallback"] for build in builds)
    assert "What to try next" in capsys.readouterr().out
