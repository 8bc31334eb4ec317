"""What it takes to bring a segment from one worker to another, learned from those that were brought."""

from collections import deque
from statistics import median

import numpy as np

REMEMBERED_TRANSFERS = 64


class TransferEstimate:
    """The latest transfers. Before the first one, everything is taken to cost nothing, so that one is tried."""

    def __init__(self) -> None:
        self._latest: deque[tuple[int, int, float]] = deque(maxlen=REMEMBERED_TRANSFERS)

    def add(self, tokens: int, nbytes: int, seconds: float) -> None:
        """A segment has arrived, so long after it was ready to be sent."""
        if tokens > 0 and nbytes > 0:
            self._latest.append((tokens, nbytes, seconds))

    def seconds(self, nbytes: int) -> float:
        """Predicted. By the median pace of a byte, since some transfers also wait for a receiver that is busy."""
        if not self._latest:
            return 0.0
        return nbytes * median(seconds / nbytes for _, nbytes, seconds in self._latest)

    def bytes_of(self, tokens: int) -> int:
        """Predicted size of a segment: a state of one size, and keys and values by the token."""
        if not self._latest:
            return 0
        lengths, sizes = np.array([(found, nbytes) for found, nbytes, _ in self._latest], dtype=float).T
        if len(np.unique(lengths)) == 1:
            return int(sizes.mean())
        per_token, state = np.polyfit(lengths, sizes, 1)
        return max(0, int(state + per_token * tokens))
