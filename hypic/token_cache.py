"""Token ids of texts that were encoded before, so that a document that comes back is not encoded again.

Bounded by true bytes, least recently used first. A text is found again under the same scope alone (a tenant's salt):
how fast a text is encoded must not tell one tenant what another has sent.
"""

import hashlib
import threading
from collections import OrderedDict

from hypic.segment import TokenIds

ENTRY_BYTES = 256
"""What an entry takes beside its token ids: its key, the array's head, its places in the dictionary."""


class TokenCache:
    """May be used from several threads."""

    def __init__(self, budget_bytes: int) -> None:
        """budget_bytes: 0 keeps nothing."""
        self.budget_bytes, self.used_bytes = budget_bytes, 0
        self.hits, self.misses = 0, 0
        self._entries: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @staticmethod
    def key(scope: str, text: str) -> bytes:
        """32 bytes that name a text within a scope."""
        digest = hashlib.blake2b(digest_size=32)
        for value in (scope.encode(), text.encode()):
            digest.update(len(value).to_bytes(8, "little"))
            digest.update(value)
        return digest.digest()

    def get(self, key: bytes) -> TokenIds | None:
        """The token ids kept under a key; they must not be changed."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, token_ids: TokenIds) -> None:
        """Keep token ids, dropping what was used longest ago. What alone is over the budget is not kept."""
        nbytes = token_ids.nbytes + ENTRY_BYTES
        with self._lock:
            if nbytes > self.budget_bytes or key in self._entries:
                return
            token_ids.setflags(write=False)
            self._entries[key] = token_ids
            self.used_bytes += nbytes
            while self.used_bytes > self.budget_bytes:
                _, dropped = self._entries.popitem(last=False)
                self.used_bytes -= dropped.nbytes + ENTRY_BYTES

    def clear(self) -> None:
        """Keep nothing of what was put so far."""
        with self._lock:
            self._entries.clear()
            self.used_bytes = 0
