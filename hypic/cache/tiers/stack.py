"""The tiers of one cache, as settings describe them."""

from collections.abc import Callable
from dataclasses import dataclass

from hypic.cache.eviction import CostAware, LeastRecentlyUsed, Policy
from hypic.cache.memory import Memory, WriteMode
from hypic.cache.tiers.codec import EngineCodec
from hypic.cache.tiers.files import FileTier
from hypic.cache.tiers.host import HostTier
from hypic.cache.tiers.ram import RamTier
from hypic.cache.tiers.tier import Tier

POLICIES: dict[str, Callable[[], Policy]] = {"lru": LeastRecentlyUsed, "cost": CostAware}


@dataclass(frozen=True)
class TierSettings:
    """What stands below the device's own budget. url: a directory or an object store that fsspec knows, "" for none."""

    host_bytes: int = 0
    url: str = ""
    disk_bytes: int = 0
    write: WriteMode = "back"
    policy: str = "cost"


def open_memory(device_bytes: int, settings: TierSettings, device: str = "cpu") -> Memory:
    """A memory with those tiers. Raises OSError where the URL cannot be used."""
    tiers: list[Tier] = [RamTier("device", device_bytes)]
    if settings.host_bytes:
        tiers.append(HostTier(settings.host_bytes, device))
    if settings.url:
        tiers.append(FileTier(settings.url, settings.disk_bytes, EngineCodec(device)))
    return Memory(tiers, POLICIES[settings.policy](), settings.write)
