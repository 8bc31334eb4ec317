"""What is counted about a memory: what its tiers hold by kind, and what has happened since the start."""

from dataclasses import dataclass, field

from hypic.cache.tiers.tier import Tier


@dataclass
class MemoryStats:
    """Counts since the start. evicted: copies that left a tier, lost: cells whose last copy went, by reason.
    failed: transfers, by reason. gone, rejected: cells whose last copy went, and cells that found no room, by kind."""

    evicted: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    loaded: int = 0


@dataclass(frozen=True)
class TierUse:
    """What a tier holds. entries, nbytes: by kind. used_bytes: with what earlier processes left and nobody claimed."""

    tier: str
    used_bytes: int
    budget_bytes: int
    entries: dict[str, int]
    nbytes: dict[str, int]


@dataclass
class TierBook:
    """Copies in one tier and their bytes there, by kind."""

    entries: dict[str, int] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)

    def count(self, kind: str, entries: int, nbytes: int) -> None:
        """Copies have come, or, with numbers below 0, have gone."""
        count(self.entries, kind, entries)
        count(self.nbytes, kind, nbytes)

    def use(self, tier: Tier) -> TierUse:
        """What is in that tier, kinds of which nothing is there left out."""
        present = [{kind: n for kind, n in counts.items() if n} for counts in (self.entries, self.nbytes)]
        return TierUse(tier.name, tier.used_bytes, tier.budget_bytes, *present)


def count(counts: dict[str, int], name: str, change: int = 1) -> None:
    """Count something by name."""
    counts[name] = counts.get(name, 0) + change
