"""Settings of the engine, the cluster and the server. The command line is made from these fields."""

from dataclasses import dataclass
from pathlib import Path

BUNDLED_MODEL = Path(__file__).parent / "assets" / "recall"


@dataclass(frozen=True)
class EngineConfig:
    """One engine: its model and its memory.

    model: a checkpoint directory. dtype: "auto" takes the checkpoint's. segment_cache_bytes, prefix_cache_bytes:
    budgets in true bytes. host_cache_bytes: RAM below each of the two, 0 for none. cache_url: a directory or an object
    store (fsspec) below that, which outlives the process, "" for none. disk_cache_bytes: its budget, for each of the
    two. cache_write: "back" writes down what has to leave the tier above, "through" everything at once. cache_policy:
    what goes first, "lru" or "cost", which weighs the seconds to recompute something by its bytes and its uses.
    min_segment_tokens: shorter documents are simply computed. max_running: requests decoded together.
    max_build_tokens: cold segments are prefilled in packed batches of about this size. threads: of torch, 0 leaves its
    default.
    """

    model: Path = BUNDLED_MODEL
    dtype: str = "auto"
    device: str = "cpu"
    segment_cache_bytes: int = 2 * 1024**3
    prefix_cache_bytes: int = 1024**3
    host_cache_bytes: int = 0
    cache_url: str = ""
    disk_cache_bytes: int = 16 * 1024**3
    cache_write: str = "back"
    cache_policy: str = "cost"
    min_segment_tokens: int = 24
    max_running: int = 16
    max_build_tokens: int = 8192
    threads: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"dtype must be auto, float32 or bfloat16, found {self.dtype!r}")
        if self.cache_write not in ("back", "through"):
            raise ValueError(f"cache_write must be back or through, found {self.cache_write!r}")
        if self.cache_policy not in ("lru", "cost"):
            raise ValueError(f"cache_policy must be lru or cost, found {self.cache_policy!r}")
        for name in ("segment_cache_bytes", "prefix_cache_bytes", "host_cache_bytes", "disk_cache_bytes", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, found {getattr(self, name)}")
        for name in ("min_segment_tokens", "max_running", "max_build_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}")


@dataclass(frozen=True)
class ClusterConfig:
    """The Ray side. address: of a running cluster, "" starts a local one."""

    scatter_workers: int = 2
    combine_workers: int = 1
    placement: str = "lpt"
    address: str = ""

    def __post_init__(self) -> None:
        if self.scatter_workers < 0 or self.combine_workers < 1:
            raise ValueError(
                "there must be at least one combine worker and no negative number of scatter workers, found "
                f"{self.combine_workers} and {self.scatter_workers}"
            )
        if self.placement not in ("lpt", "round_robin", "local"):
            raise ValueError(f"placement must be lpt, round_robin or local, found {self.placement!r}")


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP side. pic: the arm of requests that name none, or "auto" to measure the arms on this checkpoint at the
    start and take the one nearest to a full recompute. pic_tolerance: how far that may be, in nats of the next-token
    distribution; beyond it only exact prefixes are reused.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    pic: str = "hypic"
    pic_tolerance: float = 0.1

    def __post_init__(self) -> None:
        if self.pic_tolerance < 0:
            raise ValueError(f"pic_tolerance must not be negative, found {self.pic_tolerance}")
