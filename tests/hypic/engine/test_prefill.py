"""A long pass is computed in chunks: the result is that of one pass, and those who decode do not wait for it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.arms import ARMS
from hypic.engine.prefill import split
from hypic.request import TokenOutput
from hypic.sequence import Active, Piece, Reused

Bench = Any
MakeBench = Callable[..., Bench]
OPERATORS: Any = None  # nothing here looks into them


def reused(tokens: int) -> Reused:
    return Reused(tokens, OPERATORS, torch.zeros(0))


PIECES = st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=8)


@given(PIECES, st.integers(1, 9), st.integers(1, 12))
@settings(derandomize=True, deadline=None)
def test_chunks_are_the_pieces_again(before: list[tuple[bool, int]], last: int, most: int) -> None:
    pieces: tuple[Piece, ...] = (*(Active(n) if active else reused(n) for active, n in before), Active(last))
    chunks = split(pieces, most)
    assert all(chunk.active_tokens == most for chunk in chunks[:-1])
    assert 1 <= chunks[-1].active_tokens <= most
    assert all(isinstance(chunk.pieces[-1], Active) for chunk in chunks)
    assert all(chunk.active_tokens == sum(active_lengths(chunk.pieces)) for chunk in chunks)
    assert tokens_of(piece for chunk in chunks for piece in chunk.pieces) == tokens_of(iter(pieces))
    opens = {}
    for chunk in chunks:
        actives = [piece for piece in chunk.pieces if isinstance(piece, Active)]
        assert chunk.active_pieces == len(actives)
        opens |= {whole: actives[own] for own, whole in chunk.opens.items()}
    assert sorted(opens) == list(range(len(active_lengths(pieces))))


def active_lengths(pieces: Any) -> list[int]:
    return [piece.tokens for piece in pieces if isinstance(piece, Active)]


def tokens_of(pieces: Iterator[Piece]) -> list[Any]:
    """Each active token, and each reused piece, in order."""
    found: list[Any] = []
    for piece in pieces:
        found += ["active"] * piece.tokens if isinstance(piece, Active) else [piece]
    return found


def in_chunks(bench: Bench, most: int) -> None:
    bench.engine.config = replace(bench.engine.config, max_prefill_tokens=most)


def answers(bench: Bench, segments: Any, arm: str, salt: str) -> list[TokenOutput]:
    """A cold run, and another that finds what the first left in the caches."""
    return [
        output
        for _ in range(2)
        for output in bench.engine.generate(bench.request(segments, arm, salt, logprobs=5, max_tokens=4))
    ]


def assert_same(found: list[TokenOutput], expected: list[TokenOutput]) -> None:
    assert [output.token_id for output in found] == [output.token_id for output in expected]
    assert [output.usage for output in found] == [output.usage for output in expected]
    for one, other in zip(found, expected, strict=True):
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert dict(mine.top) == pytest.approx(dict(theirs.top), abs=1e-4)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_answers_as_in_one_pass(bench: Bench, arm: str) -> None:
    """Of the 33 active tokens of a cold hypic request, in pieces of 8 before each reused operator and 9 at the end:
    5 ends within seams, 8 right before the operators, 32 before the last token. In full and prefix, which compute all
    180, each of them ends within sections."""
    segments = bench.prompt([1, 2])
    in_chunks(bench, 4096)
    expected = answers(bench, segments, arm, f"{arm} whole")
    for most in (5, 8, 32):
        in_chunks(bench, most)
        assert_same(answers(bench, segments, arm, f"{arm} {most}"), expected)


def started(bench: Bench, segments: Any, arm: str = "full", **sampling: object) -> str:
    """Submit a request, its cold segments to be built here. Returns its name."""
    request = bench.request(segments, arm, **sampling)
    bench.engine.build_here(task.key for task in bench.engine.submit(request))
    return request.request_id


def computed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each forward pass from now on that is no decoding."""
    counts: list[int] = []
    forward = bench.engine.model.forward

    def counting(batch: Any) -> Any:
        if hasattr(batch, "sequences"):
            counts.append(len(batch.token_ids))
        return forward(batch)

    monkeypatch.setattr(bench.engine.model, "forward", counting)
    return counts


def test_who_decodes_gets_a_token_at_each_step_of_a_long_pass(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(max_prefill_tokens=20)
    alone = bench.tokens(bench.request(bench.prompt([1]), max_tokens=30))
    decoding = started(bench, bench.prompt([1]), "hypic", max_tokens=30)
    bench.engine.step()
    long = started(bench, bench.prompt([2, 3, 4]))
    counts = computed(bench, monkeypatch)
    steps: list[list[str]] = []
    said: list[int | None] = []
    while not steps or long not in steps[-1]:
        outputs = bench.engine.step()
        steps.append([output.request_id for output in outputs])
        said += [output.token_id for output in outputs if output.request_id == decoding]
    assert all(step.count(decoding) == 1 for step in steps)
    assert counts == [20] * 14 + [2], "30 + 74 + 81 + 88 + 9 tokens in chunks of 20"
    assert len(steps) == len(counts)
    assert said == alone[1 : 1 + len(said)]


def test_builds_are_packed_as_a_chunk_is_while_anybody_decodes(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(max_prefill_tokens=150)
    counts = computed(bench, monkeypatch)
    started(bench, bench.prompt([1, 2], leading=0), "hypic")
    bench.engine.step()
    assert counts[0] == 67 + 74
    counts.clear()
    started(bench, bench.prompt([3, 4, 5], leading=0), "hypic")
    for _ in range(3):
        bench.engine.step()
    assert counts == [81, 88, 95, 8 + 8 + 8 + 9]


def test_a_request_that_is_cached_need_not_wait_for_a_long_pass(make_bench: MakeBench) -> None:
    bench = make_bench(max_prefill_tokens=20)
    bench.tokens(bench.request(bench.prompt([1, 2])))
    long, short = started(bench, bench.prompt([3, 4])), started(bench, bench.prompt([1, 2]), "hypic")
    bench.engine.step()
    outputs = bench.engine.step()
    assert [output.request_id for output in outputs] == [short]
    order = [output.request_id for _ in range(40) for output in bench.engine.step()]
    assert order.count(long) == 8


def test_a_pass_that_has_begun_counts_among_those_that_run(make_bench: MakeBench) -> None:
    bench = make_bench(max_prefill_tokens=20, max_running=1)
    bench.tokens(bench.request(bench.prompt([1, 2])))
    long = started(bench, bench.prompt([3, 4]))
    bench.engine.step()
    short = started(bench, bench.prompt([1, 2]), "hypic")
    order = [output.request_id for _ in range(40) for output in bench.engine.step()]
    assert order == [long] * 8 + [short] * 8


@pytest.mark.parametrize("how", ["aborted", "failed"])
def test_a_pass_that_ends_halfway_leaves_nothing(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    bench = make_bench(max_prefill_tokens=5)
    alone = bench.tokens(bench.request(bench.prompt([1, 2])))
    cached = len(bench.engine.prefixes)
    other, halfway = started(bench, bench.prompt([1, 2]), "hypic"), started(bench, bench.prompt([2, 1]), "hypic")
    said = [output for _ in range(3) for output in bench.engine.step()]
    if how == "aborted":
        bench.engine.abort(halfway)
    else:
        forward = bench.engine.model.forward

        def failing(batch: Any) -> Any:
            if hasattr(batch, "sequences"):
                raise MemoryError("no room")
            return forward(batch)

        monkeypatch.setattr(bench.engine.model, "forward", failing)
    while not bench.engine.idle:
        said += bench.engine.step()
    assert [output.token_id for output in said if output.request_id == other] == alone
    errors = [output.error for output in said if output.request_id == halfway]
    assert errors == (["MemoryError: no room"] if how == "failed" else [])
    assert len(bench.engine.prefixes) == cached
    bench.engine.check()
