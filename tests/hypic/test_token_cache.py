"""Token ids that are kept: bounded by true bytes, and by scope."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypic.token_cache import ENTRY_BYTES, TokenCache


def ids(tokens: int) -> np.ndarray:
    return np.arange(tokens, dtype=np.int32)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 400)), max_size=60))
def test_bytes_are_counted_and_bounded(puts: list[tuple[int, int]]) -> None:
    cache = TokenCache(4000)
    for name, tokens in puts:
        cache.put(TokenCache.key("", str(name)), ids(tokens))
        assert cache.used_bytes == sum(kept.nbytes + ENTRY_BYTES for kept in cache._entries.values()) <= 4000


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = TokenCache(3 * (400 + ENTRY_BYTES))
    keys = [TokenCache.key("", str(number)) for number in range(4)]
    for key in keys[:3]:
        cache.put(key, ids(100))
    assert cache.get(keys[0]) is not None
    cache.put(keys[3], ids(100))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]
    assert (cache.hits, cache.misses) == (4, 1)


def test_scopes_do_not_meet() -> None:
    assert TokenCache.key("a", "bc") != TokenCache.key("ab", "c")
    cache = TokenCache(10_000)
    cache.put(TokenCache.key("a", "text"), ids(3))
    assert cache.get(TokenCache.key("b", "text")) is None


def test_nothing_is_kept_without_a_budget_and_nothing_kept_can_be_changed() -> None:
    cache = TokenCache(0)
    cache.put(b"k", ids(1))
    assert len(cache) == 0
    cache = TokenCache(10_000)
    cache.put(b"k", ids(3))
    kept = cache.get(b"k")
    assert kept is not None
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 9
