"""Traces as requests: ids and lengths are those of the files, times keep their shape, texts are the same for an id."""

import json
from pathlib import Path

import numpy as np
import pytest

from hypic.errors import InvalidRequestError
from hypic.eval.cache_traces import DATA, trace_lines
from hypic.eval.filling import Filling
from hypic.eval.replay import TRACES, Asked, Part, catch_up, read_trace, scaled, send_times
from hypic.tokenizer import PromptTokenizer


def asked(*documents: str, seconds: float = 0.0) -> Asked:
    parts = tuple(Part(name, 40) for name in documents)
    return Asked(seconds, Part("system", 20), parts, (Part("turn", 10),), Part(f"question {seconds}", 6), 4)


def test_ragpulse_has_the_ids_and_lengths_of_the_file() -> None:
    head, rows = trace_lines(DATA / "ragpulse.jsonl.gz")
    found = read_trace("ragpulse", 0)
    assert len(found) == len(rows)
    lengths = {int(name): tokens for name, tokens in head["lengths"].items()}
    row = min(rows, key=lambda row: row[0])
    first = found[0]
    assert first.seconds == row[0]
    assert [part.name for part in first.parts[:-1]] == [f"ragpulse {name}" for ids in row[3:7] for name in ids]
    assert first.prompt_tokens == sum(lengths[name] for ids in row[3:8] for name in ids)


def test_mooncake_prompts_are_as_long_as_in_the_file() -> None:
    _, rows = trace_lines(DATA / "mooncake.jsonl.gz")
    found = read_trace("mooncake", 0)
    lengths = sorted(request.prompt_tokens for request in found)
    told = sorted(max(row[1], 16) for row in rows)
    assert np.mean(np.abs(np.array(lengths) - told)) < 0.01 * np.mean(told)
    assert len({part.name for part in found[0].parts}) == len(found[0].parts)


def test_synthetic_is_drawn_from_a_seed() -> None:
    assert read_trace("synthetic", 1)[:20] == read_trace("synthetic", 1)[:20]
    assert read_trace("synthetic", 1)[:20] != read_trace("synthetic", 2)[:20]


def test_an_unknown_trace_names_those_there_are() -> None:
    with pytest.raises(InvalidRequestError, match=", ".join(TRACES)):
        read_trace("nothing", 0)


def test_lengths_scale_and_never_vanish() -> None:
    (half,) = scaled([asked("a")], 0.5, 0.1)
    assert [part.tokens for part in half.parts] == [10, 20, 5, 3]
    assert half.output_tokens == 1


def test_gaps_keep_their_shape_at_any_rate() -> None:
    requests = [asked(seconds=seconds) for seconds in (10.0, 11.0, 11.0, 15.0, 20.0)]
    times = send_times(requests, qps=2.0, arrivals="trace", seed=0)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(4 / 2.0), "four gaps at two a second"
    assert np.diff(times) == pytest.approx(np.array([1, 0, 4, 5]) * 2.0 / 10)


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(send_times([asked()] * 4000, qps=10.0, arrivals="poisson", seed=3))
    assert gaps.mean() == pytest.approx(0.1, rel=0.01)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_arrivals_all_at_once_have_no_rate() -> None:
    with pytest.raises(InvalidRequestError, match="poisson"):
        send_times([asked(), asked()], 1.0, "trace", 0)


def test_caches_catch_up_with_what_is_asked_again_and_no_more() -> None:
    history = [asked("a", "b"), asked("b", "c"), asked("d")]
    found = catch_up(history, [asked("c", "b", "new")])
    assert [part.name for request in found for part in request.documents] == ["b", "c"]
    assert [part.name for request in found for part in request.context] == ["turn"]
    assert {request.output_tokens for request in found} == {1}


def test_texts_have_their_length_and_are_the_same_for_an_id(tiny_checkpoint: Path) -> None:
    tokenizer = PromptTokenizer.load(tiny_checkpoint)
    filling = Filling(tokenizer)
    text = filling.text(Part("passage 7", 300))
    assert text.startswith("passage 7.")
    assert len(tokenizer.hf(text)["input_ids"]) == 300
    assert Filling(tokenizer).text(Part("passage 7", 300)) == text
    assert filling.text(Part("passage 8", 300))[20:] != text[20:]
    assert filling.text(Part("q 1", 1)) == "q 1."


def test_body_keeps_the_order_of_the_trace(tiny_checkpoint: Path) -> None:
    body = json.loads(Filling(PromptTokenizer.load(tiny_checkpoint)).body(asked("b", "a"), "prefix", "salt"))
    assert [document["id"] for document in body["documents"]] == ["b", "a"]
    turn, question = body["messages"][1]["content"]
    assert turn["text"].startswith("turn")
    assert question["text"].startswith("question")
    assert body["max_tokens"] == body["min_tokens"] == 4
    assert (body["hypic"], body["cache_salt"]) == ({"arm": "prefix"}, "salt")
