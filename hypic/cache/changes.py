"""What a store gained and lost, numbered, for whoever keeps a directory of several stores.

The log forgets: a reader that comes too late sees a gap in the numbers, and asks for all that the store holds.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

KEPT_CHANGES = 8192


@dataclass(frozen=True, slots=True)
class Change:
    """An entry is now ready in that tier (the fastest one that has a copy), or gone where tier is ""."""

    key: bytes
    tier: str
    nbytes: int


class ChangeLog:
    """The latest changes of one store. Written by the thread that owns the store, read by any.

    epoch: greater in each new process, so that a reader can tell a restart from a late message. sequence: number of the
    last change, 0 before the first.
    """

    def __init__(self, kept: int = KEPT_CHANGES) -> None:
        self.epoch = time.time_ns()
        self.sequence = 0
        self.listener: Callable[[], None] = lambda: None
        """Called after each change, in the writer's thread: it must only pass the word on."""
        self._latest: deque[Change] = deque(maxlen=kept)
        self._lock = threading.Lock()

    def note(self, change: Change) -> None:
        """The next change."""
        with self._lock:
            self.sequence += 1
            self._latest.append(change)
        self.listener()

    def since(self, sequence: int) -> tuple[int, tuple[Change, ...]]:
        """(number of the change before the first of these, the changes after `sequence` that are still known)."""
        with self._lock:
            first_kept = self.sequence - len(self._latest)
            after = min(max(sequence, first_kept), self.sequence)
            return after, tuple(islice(self._latest, after - first_kept, None))
