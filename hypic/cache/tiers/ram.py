"""A tier in memory: payloads by cell. What is put is kept as it is, since payloads never change."""

from hypic.cache.tiers.tier import Named, Payload


class RamTier:
    """Payloads of at most `budget_bytes` together."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self.name, self.budget_bytes = name, budget_bytes
        self._payloads: dict[Named, Payload] = {}
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def cost_bytes(self, cell: Named, payload: Payload) -> int:
        return payload.nbytes

    def put(self, cell: Named, payload: Payload) -> None:
        assert cell not in self._payloads, "a second copy in one tier"
        self._used_bytes += payload.nbytes
        assert self._used_bytes <= self.budget_bytes, (self.name, self._used_bytes, self.budget_bytes)
        self._payloads[cell] = payload

    def get(self, cell: Named) -> Payload:
        return self._payloads[cell]

    def drop(self, cell: Named) -> None:
        self._used_bytes -= self._payloads.pop(cell).nbytes

    def copies(self) -> int:
        return len(self._payloads)
