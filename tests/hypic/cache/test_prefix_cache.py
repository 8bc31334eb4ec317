"""Prefixes of prompts: the longest that was remembered, never of other tokens, exact and composed apart."""

from collections.abc import Sequence

import numpy as np
import torch

from hypic.cache.entry import StateEnd
from hypic.cache.prefix_cache import EXACT, NO_MATCH, PrefixCache
from hypic.segment import Namespace, Segment
from hypic.sequence import CacheSpec, SequenceCache

NAMESPACE = Namespace("model", "tokenizer", "float32")
QUESTION = Segment("question", np.array([99], np.int32))
SPEC = CacheSpec(
    linear_layers=1,
    heads=1,
    key_dim=2,
    value_dim=2,
    conv_channels=4,
    conv_width=4,
    attention_layers=1,
    kv_heads=1,
    attention_key_dim=2,
    attention_value_dim=2,
    dtype=torch.float32,
    device=torch.device("cpu"),
)
BOUNDARY_BYTES = SPEC.state_bytes()


def segments(*parts: Sequence[int]) -> tuple[Segment, ...]:
    return (*(Segment("document", np.array(part, np.int32)) for part in parts), QUESTION)


def memory_after(prompt: tuple[Segment, ...], fill: float = 0.0) -> SequenceCache:
    """Keys and values that say which position they are of, and which prompt's."""
    cache = SequenceCache.empty(SPEC, sum(len(segment) for segment in prompt) + 4)
    cache.keys.copy_(torch.arange(cache.capacity_tokens).reshape(1, -1, 1, 1).expand_as(cache.keys) + fill)
    cache.values.copy_(-cache.keys)
    return cache


def state_at(depth: int) -> StateEnd:
    return StateEnd(torch.full((1, 1, 2, 2), float(depth)), torch.full((1, 3, 4), float(depth)))


def fill(cache: PrefixCache, prompt: tuple[Segment, ...], provenance: str = EXACT, mark: float = 0.0) -> None:
    """One boundary a section."""
    ends = np.cumsum([len(segment) for segment in prompt[:-1]]).tolist()
    states = {end: (lambda end=end: state_at(end)) for end in ends}
    cache.publish(NAMESPACE, prompt[:-1], provenance, memory_after(prompt, mark), states)
    cache.tree.check()
    cache.memory.check(cache.tree.cells())


def matched(cache: PrefixCache, prompt: tuple[Segment, ...], *provenances: str) -> tuple[int, int]:
    match = cache.match(NAMESPACE, prompt, provenances or (EXACT,))
    if match.tokens:
        found = SequenceCache.empty(SPEC, match.tokens + 1)
        match.load(found)
        assert found.tokens == match.tokens
        assert found.keys[0, : match.tokens, 0, 0].tolist() == list(range(match.tokens))
        assert found.states.unique().tolist() == found.conv_tails.unique().tolist() == [match.tokens]
    match.release()
    match.release()
    cache.tree.check()
    cache.memory.check(cache.tree.cells())
    assert cache.stats.leases == 0
    return match.sections, match.tokens


def test_longest_prefix_of_equal_tokens() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1, 2], [3], [4, 5, 6]))
    assert len(cache) == 3
    assert matched(cache, segments([1, 2], [3], [4, 5, 6])) == (3, 6)
    assert matched(cache, segments([1, 2], [3], [4, 5, 6], [7])) == (3, 6)
    assert matched(cache, segments([1, 2], [3], [4, 5, 7])) == (2, 3)
    assert matched(cache, segments([1], [2], [3])) == (3, 3), "cut otherwise, the tokens are the same"
    assert matched(cache, segments([1, 2, 3, 4])) == (0, 0)
    assert matched(cache, segments([2], [3])) == (0, 0)
    assert matched(cache, (QUESTION,)) == (0, 0)


def test_the_last_section_is_never_matched() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1], [99]))
    assert matched(cache, segments([1])) == (1, 1), "the prompt is [1][99]: 99 is left to compute"


def test_provenance_and_namespace_separate() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1]), "composed")
    assert matched(cache, segments([1])) == (0, 0)
    assert matched(cache, segments([1]), EXACT, "composed") == (1, 1)
    other = Namespace("model", "tokenizer", "float32", salt="other")
    assert cache.match(other, segments([1]), ("composed",)) is NO_MATCH


def test_composed_memory_is_of_a_prompt_cut_alike() -> None:
    """Each reused section has a seam of its own, so composed memory of the same tokens cut otherwise is another."""
    cache = PrefixCache(10_000)
    fill(cache, segments([1, 2], [3, 4]), "composed")
    assert matched(cache, segments([1, 2], [3, 4], [5]), "composed") == (2, 4)
    assert matched(cache, segments([1, 2, 3, 4]), "composed") == (0, 0)
    assert matched(cache, segments([1, 2], [3], [4]), "composed") == (1, 2)
    fill(cache, segments([1, 2, 3, 4]), "composed")
    assert matched(cache, segments([1, 2, 3, 4]), "composed") == (1, 4)


def test_the_longer_one_is_taken_and_of_equals_the_exact_one() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1, 2], [3]), "composed")
    fill(cache, segments([1, 2]))
    for prompt, tokens, exact in ((segments([1, 2], [3]), 3, False), (segments([1, 2], [4]), 2, True)):
        match = cache.match(NAMESPACE, prompt, (EXACT, "composed"))
        assert (match.tokens, match.exact) == (tokens, exact)
        match.release()


def test_empty_sections_are_no_boundary() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1, 2], [3]))
    assert matched(cache, segments([], [1, 2], [], [3], [])) == (5, 3)


def test_what_a_match_holds_stays_and_then_goes() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1], [2]))
    match = cache.match(NAMESPACE, segments([1], [2]), (EXACT,))
    cache.memory.evict(10_000)
    found = SequenceCache.empty(SPEC, 3)
    match.load(found)
    assert found.keys[0, :2, 0, 0].tolist() == [0, 1]
    match.release()
    cache.memory.evict(10_000)
    assert len(cache) == cache.stats.used_bytes == 0


def test_no_room_is_less_memory_not_an_error() -> None:
    for budget in range(0, 4 * BOUNDARY_BYTES, BOUNDARY_BYTES // 3):
        cache = PrefixCache(budget)
        fill(cache, segments([1, 2], [3], [4]))
        fill(cache, segments([7], [8]))
        matched(cache, segments([1, 2], [3], [4]))
        assert cache.stats.used_bytes <= budget


def test_nothing_cached_shares_memory_with_what_runs() -> None:
    cache, prompt = PrefixCache(10_000), segments([1, 2])
    running = memory_after(prompt)
    cache.publish(NAMESPACE, prompt[:-1], EXACT, running, {2: lambda: state_at(2)})
    running.keys.fill_(777)
    assert matched(cache, prompt) == (1, 2)
