"""Segments on their way up from a slow tier: read in other threads while the engine goes on, then ready for those who
wait for them. One that cannot be read any more is lost, with a reason."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypic.cache.store import Store
from hypic.cache.tiers.prefetch import Prefetcher
from hypic.cache.tiers.tier import Lasting

READERS = 4
"""Reads at the same time: they hide the latency of an object store from a prompt of many documents."""


class Arrivals:
    """Reads in flight for one store. Not thread-safe: one engine owns it."""

    def __init__(self, store: Store[Any]) -> None:
        self.on_landed: Callable[[], None] = lambda: None
        """Called in a reader's thread whenever a read is over."""
        self._store = store
        self._fast = sum(1 << n for n, tier in enumerate(store.memory.tiers) if not isinstance(tier, Lasting))
        self._prefetcher = Prefetcher(store.memory, ThreadPoolExecutor(READERS, "read"), lambda: self.on_landed())

    def __len__(self) -> int:
        """How many reads have not been taken in."""
        return len(self._prefetcher)

    @property
    def landed(self) -> bool:
        """Whether some read is over and not taken in yet."""
        return self._prefetcher.landed

    def slow(self, key: bytes) -> bool:
        """Whether an entry is there, in slow tiers alone."""
        cell = self._store.find(key)
        return cell is not None and not cell.tiers & self._fast

    def begin(self, key: bytes) -> None:
        """Read an entry, if nobody is doing so already."""
        cell = self._store.find(key)
        if cell is not None:
            self._prefetcher.start(cell)

    def flying(self, key: bytes) -> bool:
        """Whether an entry is still on its way."""
        cell = self._store.find(key)
        return cell is not None and cell in self._prefetcher

    def take_in(self, wait: bool = False) -> None:
        """Make ready what has been read; wait: everything that is being read."""
        self._prefetcher.poll(wait)
