"""Answers of one request: several from one prefill, stop strings over token borders, probabilities, early refusals."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypic.engine.generation import StopText
from hypic.errors import InvalidRequestError
from hypic.request import TokenOutput


def outputs(bench: Any, request: Any) -> list[TokenOutput]:
    return list(bench.engine.generate(request))


def texts(found: list[TokenOutput], choices: int) -> list[str]:
    return ["".join(output.text for output in found if output.choice == choice) for choice in range(choices)]


def ids(found: list[TokenOutput], choice: int = 0) -> list[int | None]:
    return [output.token_id for output in found if output.choice == choice]


def test_choices_share_one_prefill(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = bench.request(bench.prompt([1, 2]), temperature=1.0, seed=3)
    alone = [
        ids(outputs(bench, replace(sampled, request_id=f"a{n}", sampling=replace(sampled.sampling, seed=3 + n))))
        for n in range(3)
    ]
    passes = []
    sequence = bench.engine.composer.sequence
    monkeypatch.setattr(bench.engine.composer, "sequence", lambda *args: passes.append(1) or sequence(*args))
    found = outputs(bench, replace(sampled, choices=3))
    assert len(passes) == 1
    assert [ids(found, choice) for choice in range(3)] == alone
    assert len({tuple(tokens) for tokens in alone}) == 3
    last = found[-1]
    assert last.usage.completion_tokens == 24
    assert last.usage.prompt_tokens == sampled.prompt_tokens
    assert [output.ends_request for output in found] == [False] * 23 + [True]
    assert bench.engine.idle


def test_choices_end_each_for_itself(bench: Any) -> None:
    request = bench.request(bench.prompt([1]), temperature=1.5, seed=1, max_tokens=30)
    free = outputs(bench, replace(request, choices=4))
    stop = texts(free, 4)[2][3:5]
    found = outputs(
        bench, replace(request, request_id="s", choices=4, sampling=replace(request.sampling, stop=(stop,)))
    )
    for choice, text in enumerate(texts(free, 4)):
        assert texts(found, 4)[choice] == (text[: text.index(stop)] if stop in text else text)
    ends = [output for output in found if output.finish_reason]
    assert len(ends) == 4
    assert {output.matched for output in ends if output.finish_reason == "stop"} == {stop}
    assert [output.ends_request for output in found].count(True) == 1


def test_abort_ends_every_choice(bench: Any) -> None:
    request = replace(bench.request(bench.prompt([1]), max_tokens=50), choices=3)
    generation = bench.engine.generate(request)
    next(generation)
    generation.close()
    assert bench.engine.idle
    bench.engine.check()


def test_probabilities_are_those_of_a_full_pass(bench: Any) -> None:
    """Of each token, given the prompt and the answer before it, with everything computed again."""
    request = bench.request(bench.prompt([1]), arm="full", logprobs=3, temperature=0.7, seed=2)
    found = [token for output in outputs(bench, request) for token in output.logprobs]
    assert len(found) == 8
    prompt = request.segments
    for number, token in enumerate(found):
        said = torch.tensor([t.token_id for t in found[:number]], dtype=torch.int32).numpy()
        question = prompt[-1]
        longer = replace(question, token_ids=np.concatenate([question.token_ids, said]))
        logits = bench.logits(bench.request((*prompt[:-1], longer), arm="full"))[-1]
        logs = torch.log_softmax(logits, -1)
        assert token.logprob == pytest.approx(float(logs[token.token_id]), abs=1e-3)
        assert [t for t, _ in token.top] == logs.topk(3).indices.tolist()


def test_probabilities_come_with_their_text_and_stop_where_it_stops(bench: Any) -> None:
    request = bench.request(bench.prompt([1]), max_tokens=24, logprobs=0)
    free = outputs(bench, request)
    whole = texts(free, 1)[0]
    everything = [token for output in free for token in output.logprobs]
    assert len(everything) == 24
    at = len(whole) // 2
    stop = whole[at : at + 3]
    stopped = outputs(bench, replace(request, request_id="s", sampling=replace(request.sampling, stop=(stop,))))
    kept = [token for output in stopped for token in output.logprobs]
    assert texts(stopped, 1)[0] == whole[: whole.index(stop)]
    expected = [token for token in everything if token.offset_chars < whole.index(stop)]
    assert [(token.token_id, token.offset_chars) for token in kept] == [
        (token.token_id, token.offset_chars) for token in expected
    ]
    said = 0
    for output in stopped:
        said += len(output.text)
        assert all(token.offset_chars < said for token in output.logprobs)


def test_stop_looks_at_the_answer_alone(bench: Any) -> None:
    """A stop string that began in the prompt's last segment does not end the answer."""
    request = bench.request(bench.prompt([1]), max_tokens=8)
    whole = texts(outputs(bench, request), 1)[0]
    ending = bench.engine.tokenizer.decode(request.segments[-1].token_ids[-1:].tolist())
    sampling = replace(request.sampling, stop=(ending + whole[:2],))
    assert texts(outputs(bench, replace(request, request_id="s", sampling=sampling)), 1)[0] == whole


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_stop_text_equals_a_search_in_the_whole(text: str, stops: list[str], data: st.DataObject) -> None:
    """However the text is cut into pieces, and never saying anything that a stop string may still take back."""
    stopper, said, place, matched = StopText(tuple(stops)), "", 0, None
    while place < len(text) and matched is None:
        end = data.draw(st.integers(place + 1, len(text)))
        piece, matched = stopper.push(text[place:end])
        said, place = said + piece, end
    if matched is None:
        said += stopper.flush()
    first = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if matched is not None:
        assert said + matched == text[: len(said + matched)]
        assert not any(stop in said for stop in stops)
    assert (first is None) == (matched is None)
    assert said == (text if first is None else text[: len(said)])


def test_stop_tokens_end_the_text(bench: Any) -> None:
    request = bench.request(bench.prompt([1]))
    found = ids(outputs(bench, request))
    stop = found[3]
    sampling = replace(request.sampling, stop_token_ids=(stop,))
    stopped = outputs(bench, replace(request, request_id="s", sampling=sampling))
    assert ids(stopped) == found[: found.index(stop) + 1]
    assert (stopped[-1].finish_reason, stopped[-1].matched) == ("stop", stop)


@pytest.mark.parametrize(
    "change", [{"logit_bias": ((272, 1.0),)}, {"stop_token_ids": (-1,)}, {"logit_bias": ((-5, 1.0),)}]
)
def test_token_ids_of_no_token_are_refused_at_once(bench: Any, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="272"):
        bench.engine.submit(bench.request(bench.prompt([1]), **change))
    segments = bench.prompt([1])
    segments[-1].token_ids[0] = 272
    with pytest.raises(InvalidRequestError, match="272"):
        bench.engine.submit(bench.request(segments))
    assert bench.engine.idle


def test_build_only_builds_and_says_nothing(bench: Any) -> None:
    cold = outputs(bench, replace(bench.request(bench.prompt([1, 2])), build_only=True))
    assert [(output.token_id, output.text, output.ends_request) for output in cold] == [(None, "", True)]
    assert cold[0].usage.built_tokens > 0
    warm = outputs(bench, replace(bench.request(bench.prompt([2, 1])), build_only=True))
    assert warm[0].usage.built_tokens == 0
    assert [row.source for row in warm[0].plan.rows[1:3]] == ["segment", "segment"]
    assert bench.engine.idle
    bench.engine.check()
