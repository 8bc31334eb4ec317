"""Chains of prefixes: the longest that matches, never one of other tokens, never a broken chain."""

from collections.abc import Sequence

import numpy as np
import torch

from hypic.cache.entry import PrefixEntry
from hypic.cache.prefix_cache import EXACT, NO_MATCH, PrefixCache
from hypic.segment import Namespace, Segment, prefix_keys

NAMESPACE = Namespace("model", "tokenizer", "float32")
QUESTION = Segment("question", np.array([99], np.int32))


def segments(*parts: Sequence[int]) -> tuple[Segment, ...]:
    return (*(Segment("document", np.array(part, np.int32)) for part in parts), QUESTION)


def fill(cache: PrefixCache, prompt: tuple[Segment, ...], provenance: str = EXACT) -> list[PrefixEntry]:
    """One entry a section."""
    entries: list[PrefixEntry] = []
    for segment, key in zip(prompt[:-1], prefix_keys(NAMESPACE, prompt[:-1], provenance), strict=True):
        kv, state = torch.zeros(1, len(segment), 1, 2), torch.zeros(1, 1, 2, 2)
        parent = entries[-1].key if entries else b""
        entries.append(PrefixEntry(key, parent, segment.token_ids, kv, kv.clone(), state, torch.zeros(1, 3, 4)))
        assert cache.store.insert(entries[-1])
    return entries


def matched(cache: PrefixCache, prompt: tuple[Segment, ...], *provenances: str) -> tuple[int, int]:
    match = cache.match(NAMESPACE, prompt, provenances or (EXACT,))
    match.release()
    cache.store.check()
    return match.sections, match.tokens


def test_longest_chain_of_equal_tokens() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1, 2], [3], [4, 5, 6]))
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


def test_eviction_takes_leaves_so_no_chain_breaks() -> None:
    """Room for three of four: what goes is never something that another entry builds on."""
    size = fill(PrefixCache(10_000), segments([1]))[0].nbytes
    cache = PrefixCache(3 * size + 8)
    fill(cache, segments([1], [2]))
    fill(cache, segments([5]))
    fill(cache, segments([6]))
    assert matched(cache, segments([1], [2])) == (1, 1), "the oldest that nothing builds on went: [1][2], not [1]"
    assert matched(cache, segments([5])) == matched(cache, segments([6])) == (1, 1)


def test_a_match_pins_its_whole_chain() -> None:
    cache = PrefixCache(10_000)
    fill(cache, segments([1], [2]))
    match = cache.match(NAMESPACE, segments([1], [2]), (EXACT,))
    cache.store.clear()
    assert [lease.entry.token_ids.tolist() for lease in match.leases] == [[1], [2]]
    match.release()
    assert cache.store.clear() == 2
