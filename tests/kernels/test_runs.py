"""Runs and their chunk schedule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic.kernels.runs import Runs, Schedule

LENGTHS = st.lists(st.lists(st.integers(0, 70), max_size=4), max_size=5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(lengths=LENGTHS, chunk_tokens=st.sampled_from([8, 16, 32]))
def test_schedule_covers_each_token_once_in_order(lengths: list[list[int]], chunk_tokens: int) -> None:
    runs = Runs.from_lengths(lengths)
    schedule = Schedule.build(runs, chunk_tokens)
    assert schedule.gather.flatten()[schedule.scatter].tolist() == list(range(runs.num_tokens))
    assert sorted(schedule.order) == list(range(runs.num_sequences))
    levels = [slice(*schedule.level_offsets[i : i + 2]) for i in range(len(schedule.level_offsets) - 1)]
    for row, sequence in enumerate(schedule.order):
        chunks = [schedule.gather[level][row] for level in levels if level.stop - level.start > row]
        tokens = [token for chunk in chunks for token in chunk.tolist() if token < runs.num_tokens]
        assert tokens == list(range(*runs.tokens_of(sequence)))
        for run in runs.runs_of(sequence):
            level, found_row = schedule.first_chunk[run]
            assert found_row == row
            if runs.length(run):
                assert int(chunks[level][0]) == runs.token_offsets[run]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(lengths=LENGTHS)
def test_a_chunk_never_spans_two_runs(lengths: list[list[int]]) -> None:
    runs = Runs.from_lengths(lengths)
    run_of = [run for run in range(runs.num_runs) for _ in range(runs.length(run))]
    for chunk in runs.schedule.gather.tolist():
        assert len({run_of[token] for token in chunk if token < runs.num_tokens}) == 1


def test_short_runs_get_short_chunks() -> None:
    assert Runs.from_lengths([[8] * 16 + [40]]).schedule.chunk_tokens == 8
    assert Runs.from_lengths([[2048]]).schedule.chunk_tokens == 32


@pytest.mark.parametrize(
    ("tokens", "sequences", "message"),
    [
        ((1, 2), (0, 1), "token_offsets must start at 0"),
        ((0, 3, 2), (0, 2), "token_offsets must start at 0 and ascend"),
        ((0, 3), (), "sequence_offsets must start at 0"),
        ((0, 3, 4), (0, 1), "sequence_offsets end at run 1, but there are 2 runs"),
    ],
)
def test_refuses_broken_offsets(tokens: tuple[int, ...], sequences: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Runs(tokens, sequences)
