"""The life of requests: builds happen once, leases come back, company changes nothing, and limits are told."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from hypic.arms import ARMS
from hypic.cache.entry import SegmentEntry
from hypic.engine import composer
from hypic.errors import GenerationError, InvalidRequestError, PromptTooLongError
from hypic.request import TokenOutput

MakeBench = Callable[..., Any]


def run(engine: Any, until: int = 10_000) -> dict[str, list[TokenOutput]]:
    """Step until idle; outputs by request."""
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(until):
        if engine.idle:
            return outputs
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    raise AssertionError("the engine did not become idle")


def digest(entry: SegmentEntry) -> dict[str, float]:
    return {name: float(tensor.double().sum()) for name, tensor in entry.tensors.items()}


def test_company_changes_nothing(bench: Any) -> None:
    """Six different requests decoded together answer as each does alone: no state leaks into a neighbour."""
    prompts = [bench.prompt([seed, seed + 1]) for seed in range(1, 7)]
    alone = [bench.tokens(bench.request(prompt, salt="alone")) for prompt in prompts]
    assert len({tuple(tokens) for tokens in alone}) > 3, "prompts that answer alike test nothing"
    requests = [bench.request(prompt, salt="together") for prompt in prompts]
    for request in requests:
        bench.engine.build_here(task.key for task in bench.engine.submit(request))
    outputs = run(bench.engine)
    assert [[o.token_id for o in outputs[r.request_id]] for r in requests] == alone


def test_the_seconds_of_a_pass_are_those_of_all_its_chunks(make_bench: MakeBench) -> None:
    bench = make_bench(max_prefill_tokens=50)
    request = bench.request(bench.prompt([1, 2, 3]), "full")
    bench.engine.submit(request)
    ends: list[float] = []
    outputs: list[TokenOutput] = []
    while not outputs:
        outputs = bench.engine.step()
        ends.append(time.perf_counter())
    assert len(ends) > 3
    assert outputs[0].combine_seconds > ends[-2] - ends[0], "from before the first chunk ended to after the last began"
    assert bench.engine.step()[0].combine_seconds == 0.0
    bench.engine.abort(request.request_id)


def test_eight_requests_build_a_cold_document_once(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[bytes] = []
    original = bench.engine.build

    def build(tasks: list[Any]) -> list[SegmentEntry]:
        built.extend(task.key for task in tasks)
        return original(tasks)  # type: ignore[no-any-return]

    monkeypatch.setattr(bench.engine, "build", build)
    requests = [bench.request(bench.prompt([1, 2])) for _ in range(8)]
    news = [bench.engine.submit(request) for request in requests]
    assert [len(new) for new in news] == [3, 0, 0, 0, 0, 0, 0, 0]
    assert {row.reason for row in bench.engine._waiting[requests[1].request_id].rows} == {"in_flight", "question"}
    bench.engine.build_here(task.key for task in news[0])
    outputs = run(bench.engine)
    assert len(built) == len(set(built)) == 3
    assert len({tuple(o.token_id for o in stream) for stream in outputs.values()}) == 1
    usages = [outputs[request.request_id][-1].usage for request in requests]
    assert [usage.built_tokens > 0 for usage in usages] == [True] + [False] * 7
    assert len(bench.engine.segments) == 3


def test_entry_is_the_same_in_any_company(bench: Any) -> None:
    """Alone, in a packed batch, cold in mid-prompt: the same bytes up to rounding, and nothing changes them later."""
    engine = bench.engine
    tasks = list(engine.submit(bench.request(bench.prompt([1, 2, 3]))))
    packed = engine.build(tasks)
    alone = [engine.build([task])[0] for task in tasks]
    for one, other in zip(packed, alone, strict=True):
        for name, tensor in one.tensors.items():
            # a matrix product rounds a row differently beside other rows: a few units of float32 over five layers
            scale = float(tensor.abs().max()) if tensor.numel() else 0.0
            torch.testing.assert_close(tensor, other.tensors[name], atol=1e-5 * scale, rtol=0)
    for entry in packed:
        engine.deliver(entry)
    run(engine)
    before = [digest(entry) for entry in packed]
    for order in ([3, 2, 1], [2, 2, 1, 3, 3]):
        assert all(row.source != "build" for row in engine.plan(bench.request(bench.prompt(order))).rows)
        bench.tokens(bench.request(bench.prompt(order)))
    assert [digest(entry) for entry in packed] == before
    assert [engine.segments.peek(entry.key) is entry for entry in packed] == [True] * 4


def test_order_and_repetition_give_the_same_hits(bench: Any) -> None:
    bench.tokens(bench.request(bench.prompt([1, 2, 3])))
    for order in ([3, 1, 2], [2, 2, 2], [1, 3, 1, 3]):
        plan = bench.engine.plan(bench.request(bench.prompt(order)))
        assert [row.source for row in plan.rows[1:-1]] == ["segment"] * len(order)
        assert plan.cached_tokens == sum(row.tokens - 8 for row in plan.rows[1:-1]) + 30


@pytest.mark.parametrize("steps", range(5))
def test_abort_in_every_phase_returns_everything(bench: Any, steps: int) -> None:
    bench.tokens(bench.request(bench.prompt([1])))
    request, other = bench.request(bench.prompt([1, 2])), bench.request(bench.prompt([2, 3]))
    new = bench.engine.submit(request)
    shared = bench.engine.submit(other)
    if steps:
        bench.engine.build_here(task.key for task in (*new, *shared))
    for _ in range(steps):
        bench.engine.step()
    bench.engine.abort(request.request_id)
    bench.engine.abort(request.request_id)
    if not steps:
        bench.engine.build_here(task.key for task in (*new, *shared))
    outputs = run(bench.engine)
    assert len(outputs[other.request_id]) + steps >= 8
    bench.engine.check()
    assert bench.engine.segments.stats.leases == 0


def test_generate_abandoned_midway_returns_everything(bench: Any) -> None:
    stream = bench.engine.generate(bench.request(bench.prompt([1, 2])))
    next(stream)
    stream.close()
    assert bench.engine.idle
    bench.engine.check()


@pytest.mark.parametrize("budget", [0, 60_000, 500_000])
def test_small_budgets_change_no_answer(make_bench: MakeBench, budget: int) -> None:
    """Caches are optional: with no room, or room for a few, answers are those of a roomy engine."""
    roomy, tight = make_bench(), make_bench(cache_bytes=budget)
    for order in ([1, 2, 3], [3, 2, 1], [4, 1, 5, 2], [1, 2, 3]):
        expected = roomy.tokens(roomy.request(roomy.prompt(order)))
        assert tight.tokens(tight.request(tight.prompt(order))) == expected
        assert tight.engine.memory.used_bytes <= budget
    if budget == 500_000:
        assert tight.engine.segments.stats.evicted > 0
        plan = tight.engine.plan(tight.request(tight.prompt([4, 1, 5, 2])))
        assert "evicted" in {row.reason for row in plan.rows}


def test_tenants_share_nothing(bench: Any) -> None:
    prompt = bench.prompt([1, 2])
    bench.tokens(bench.request(prompt, salt="a"))
    assert bench.engine.plan(bench.request(prompt, salt="b")).cached_tokens == 0
    assert bench.engine.plan(bench.request(prompt, salt="a")).cached_tokens > 0


def test_composed_memory_never_serves_an_exact_request(bench: Any) -> None:
    prompt = bench.prompt([1, 2])
    bench.tokens(bench.request(prompt, "hypic"))
    hypic, prefix = (bench.engine.plan(bench.request(prompt, arm)) for arm in ("hypic", "prefix"))
    assert [row.source for row in hypic.rows] == ["prefix", "prefix", "prefix", "active"]
    assert [row.source for row in prefix.rows] == ["prefix", "active", "active", "active"]
    transition = bench.engine.plan(bench.request(prompt, "transition"))
    assert [row.source for row in transition.rows[:2]] == ["prefix", "build"]


def test_full_reads_and_leaves_nothing(bench: Any) -> None:
    prompt = bench.prompt([1, 2])
    bench.tokens(bench.request(prompt, "full"))
    assert len(bench.engine.segments) == len(bench.engine.prefixes) == 0
    bench.tokens(bench.request(prompt, "hypic"))
    plan = bench.engine.plan(bench.request(prompt, "full"))
    assert plan.cached_tokens == 0
    assert plan.computed_tokens == plan.prompt_tokens


def test_seed_repeats_and_temperature_varies(bench: Any) -> None:
    prompt = bench.prompt([1, 2])
    draw = [bench.tokens(bench.request(prompt, temperature=1.0, seed=seed)) for seed in (1, 1, 2, 3)]
    assert draw[0] == draw[1]
    assert len({tuple(tokens) for tokens in draw}) == 3
    greedy = bench.tokens(bench.request(prompt))
    assert bench.tokens(bench.request(prompt, temperature=1.0, top_p=1e-6)) == greedy


def test_stop_string_ends_the_text_before_itself(bench: Any) -> None:
    prompt = bench.prompt([1, 2])
    outputs = list(bench.engine.generate(bench.request(prompt, max_tokens=12)))
    text = "".join(output.text for output in outputs)
    stop = text[3:6]
    stopped = list(bench.engine.generate(bench.request(prompt, max_tokens=12, stop=(stop, "never"))))
    assert "".join(output.text for output in stopped) == text[: text.index(stop)]
    assert stopped[-1].finish_reason == "stop"
    assert outputs[-1].finish_reason == "length"


def test_limits_are_told_and_cost_nothing(bench: Any) -> None:
    long = bench.prompt([1], [5000])
    with pytest.raises(PromptTooLongError, match="5039 tokens"):
        bench.engine.submit(bench.request(long))
    with pytest.raises(PromptTooLongError, match="at most 4096"):
        bench.engine.plan(bench.request(bench.prompt([1]), max_tokens=4090))
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        bench.request([])
    for wrong in ({"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"stop": ("",)}):
        with pytest.raises(InvalidRequestError):
            bench.request(bench.prompt([1]), **wrong)
    assert bench.engine.idle
    request = bench.request(bench.prompt([1]))
    bench.engine.submit(request)
    with pytest.raises(InvalidRequestError, match="in use"):
        bench.engine.submit(request)
    bench.engine.abort(request.request_id)


def test_usage_adds_up(bench: Any) -> None:
    prompt = bench.prompt([1, 2, 1])
    for _ in range(2):
        usage = list(bench.engine.generate(bench.request(prompt)))[-1].usage
        plan = bench.engine.plan(bench.request(prompt))
        assert usage.completion_tokens == 8
        assert usage.prompt_tokens == plan.prompt_tokens == sum(len(segment) for segment in prompt)
    cold = list(bench.engine.generate(bench.request(prompt, salt="new")))[-1]
    assert cold.usage.cached_tokens == 67 - 8, "the repeated document was met for the first time, once"
    assert cold.usage.built_tokens == 30 + 67 + 74


def test_warm_lists_what_is_not_there(bench: Any) -> None:
    documents = [bench.segment(60, 1), bench.segment(70, 2), bench.segment(5, 3)]
    tasks = bench.engine.warm(documents)
    assert [len(task) for task in tasks] == [60, 70]
    for entry in bench.engine.build(tasks):
        bench.engine.deliver(entry)
    assert bench.engine.warm(documents) == []
    bench.engine.check()


def test_seam_width_is_part_of_the_key(bench: Any) -> None:
    prompt = bench.prompt([1])
    bench.tokens(bench.request(prompt, "hypic"))
    wider = replace(ARMS["hypic"], seam_tokens=9)
    assert [row.source for row in bench.engine.plan(bench.request(prompt, wider)).rows] == ["prefix", "build", "active"]


def failing(engine: Any, monkeypatch: pytest.MonkeyPatch, poison: int) -> None:
    """Every forward pass over a token sequence that begins with `poison` raises."""
    original = engine.model.forward

    def forward(batch: Any) -> Any:
        starts = [int(sequence.token_ids[0]) for sequence in getattr(batch, "sequences", ())]
        if poison in starts:
            raise MemoryError("no room for this one")
        return original(batch)

    monkeypatch.setattr(engine.model, "forward", forward)


@pytest.mark.parametrize("where", ["build", "combine"])
def test_a_request_that_fails_takes_no_other_with_it(bench: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    good, bad = bench.prompt([1, 2]), bench.prompt([3, 2], leading=0)
    failing(bench.engine, monkeypatch, poison=int(bad[0].token_ids[0]))
    expected = bench.tokens(bench.request(good, salt="alone"))
    requests = [bench.request(good), bench.request(bad, "hypic" if where == "build" else "prefix")]
    for request in requests:
        bench.engine.build_here(task.key for task in bench.engine.submit(request))
    outputs = run(bench.engine)
    assert [output.token_id for output in outputs[requests[0].request_id]] == expected
    (last,) = outputs[requests[1].request_id]
    assert (last.finish_reason, last.error) == ("error", "MemoryError: no room for this one")
    with pytest.raises(GenerationError, match="no room"):
        bench.tokens(bench.request(bad))
    assert bench.engine.idle
    bench.engine.check()


def test_prefixes_are_published_after_the_first_token(bench: Any) -> None:
    request = bench.request(bench.prompt([1]), max_tokens=1)
    bench.engine.build_here(task.key for task in bench.engine.submit(request))
    outputs = bench.engine.step()
    assert outputs[-1].finish_reason == "length"
    assert len(bench.engine.prefixes) == 0
    assert bench.engine.ready
    bench.engine.step()
    assert len(bench.engine.prefixes) == 2
    assert bench.engine.idle


def test_keys_that_collide_change_no_answer(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 bits 2 are left, so that documents share keys, also in one prompt: nobody is given another's entry."""
    plain, crowded = make_bench(), make_bench()
    orders = ([1, 2, 3, 4, 5, 6], [6, 2, 4], [3, 1, 5, 2], [1, 2, 3, 4, 5, 6])
    expected = [plain.tokens(plain.request(plain.prompt(order))) for order in orders]
    right = composer.segment_key
    monkeypatch.setattr(composer, "segment_key", lambda *fields: bytes(31) + bytes([right(*fields)[0] % 4]))
    assert [crowded.tokens(crowded.request(crowded.prompt(order))) for order in orders] == expected
    assert len(crowded.engine.segments) <= 4
    crowded.engine.check()
