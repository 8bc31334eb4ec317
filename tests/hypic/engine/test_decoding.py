"""A fault while several requests decode is that of the guilty one: the others say what they would have said."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from hypic.request import TokenOutput

Guilty = Callable[[Any], bool]


def decoding(bench: Any, documents: list[int], choices: int = 1, **sampling: object) -> str:
    """A request that has its first token."""
    request = replace(bench.request(bench.prompt(documents), **sampling), choices=choices)
    bench.engine.build_here(task.key for task in bench.engine.submit(request))
    while request.request_id not in bench.engine._running:
        bench.engine.step()
    return request.request_id


def to_the_end(engine: Any) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {}
    while not engine.idle:
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def raising(engine: Any, monkeypatch: pytest.MonkeyPatch, guilty: Guilty) -> None:
    """Decode batches of that kind raise once every layer has computed what it was asked."""
    forward = engine.model.forward

    def failing(batch: Any) -> Any:
        hidden = forward(batch)
        if hasattr(batch, "caches") and guilty(batch):
            raise RuntimeError("an unlucky tensor")
        return hidden

    monkeypatch.setattr(engine.model, "forward", failing)


def holding(engine: Any, request_id: str, choice: int = 0) -> Guilty:
    """Whether a batch decodes that choice."""
    cache = engine._running[request_id].choices[choice].cache
    return lambda batch: any(own is cache for own in batch.caches)


@pytest.fixture
def answers(bench: Any) -> list[list[int]]:
    """What the prompts with documents 1, 2 and 3 are answered, each alone."""
    alone = [bench.tokens(bench.request(bench.prompt([n]), max_tokens=12)) for n in (1, 2, 3)]
    assert len({tuple(tokens) for tokens in alone}) == 3, "prompts that answer alike test nothing"
    return alone


def said(outputs: dict[str, list[TokenOutput]], request_id: str, answer: list[int]) -> bool:
    """Whether what a request said to the end is the end of that answer."""
    tokens = [output.token_id for output in outputs[request_id]]
    return 0 < len(tokens) < 12 and tokens == answer[-len(tokens) :]


def test_who_raises_ends_and_the_others_go_on(
    bench: Any, answers: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [decoding(bench, [n], max_tokens=12) for n in (1, 2, 3)]
    raising(bench.engine, monkeypatch, holding(bench.engine, names[1]))
    outputs = to_the_end(bench.engine)
    (last,) = outputs[names[1]]
    assert (last.finish_reason, last.error, last.ends_request) == ("error", "RuntimeError: an unlucky tensor", True)
    assert last.usage.completion_tokens > 0, "what it said before still counts"
    assert said(outputs, names[0], answers[0])
    assert said(outputs, names[2], answers[2])
    bench.engine.check()


def test_a_batch_that_fails_as_a_whole_is_decoded_one_by_one(
    bench: Any, answers: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [decoding(bench, [n], max_tokens=12) for n in (1, 2, 3)]
    raising(bench.engine, monkeypatch, lambda batch: len(batch.caches) > 1)
    outputs = to_the_end(bench.engine)
    assert all(said(outputs, name, answer) for name, answer in zip(names, answers, strict=True))


def test_one_choice_that_fails_ends_its_request_once(
    bench: Any, answers: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    several, other = decoding(bench, [1], 3, max_tokens=12), decoding(bench, [2], max_tokens=12)
    raising(bench.engine, monkeypatch, holding(bench.engine, several, 1))
    outputs = to_the_end(bench.engine)
    assert [output.ends_request for output in outputs[several]] == [False, True], "the first choice got its token"
    assert outputs[several][-1].finish_reason == "error"
    assert said(outputs, other, answers[1])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_are_no_token(
    bench: Any, answers: list[list[int]], monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    names = [decoding(bench, [n], max_tokens=12) for n in (1, 2)]
    guilty = holding(bench.engine, names[0])
    forward, logits, batches = bench.engine.model.forward, bench.engine.model.logits, list[Any]()

    def remembered(batch: Any) -> Any:
        batches.append(batch)
        return forward(batch)

    def spoilt(hidden: Any) -> Any:
        found = logits(hidden)
        for row, cache in enumerate(getattr(batches[-1], "caches", ())):
            if guilty(type("One", (), {"caches": [cache]})):
                found[row, 7] = value
        return found

    monkeypatch.setattr(bench.engine.model, "forward", remembered)
    monkeypatch.setattr(bench.engine.model, "logits", spoilt)
    outputs = to_the_end(bench.engine)
    (last,) = outputs[names[0]]
    assert (last.token_id, last.finish_reason) == (None, "error")
    assert "NaN or infinity" in last.error
    assert said(outputs, names[1], answers[1])


def test_a_pass_without_numbers_is_an_error_and_leaves_nothing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = bench.engine.model.logits
    monkeypatch.setattr(bench.engine.model, "logits", lambda hidden: logits(hidden) * torch.nan)
    request = replace(bench.request(bench.prompt([1]), "prefix"), choices=2)
    bench.engine.submit(request)
    (last,) = to_the_end(bench.engine)[request.request_id]
    assert (last.token_id, last.finish_reason, last.ends_request) == (None, "error", True)
    assert len(bench.engine.prefixes) == 0
    bench.engine.check()
