"""Settings of the engine, the cluster and the server. The command line is made from these fields."""

from dataclasses import dataclass
from pathlib import Path

BUNDLED_MODEL = Path(__file__).parent / "assets" / "recall"


@dataclass(frozen=True)
class EngineConfig:
    """One engine: its model and its memory.

    model: a checkpoint directory. dtype: "auto" takes the checkpoint's. segment_cache_bytes, prefix_cache_bytes:
    budgets in true bytes. min_segment_tokens: shorter documents are simply computed. max_running: requests decoded
    together. max_build_tokens: cold segments are prefilled in packed batches of about this size.
    threads: of torch, 0 leaves its default.
    """

    model: Path = BUNDLED_MODEL
    dtype: str = "auto"
    device: str = "cpu"
    segment_cache_bytes: int = 2 * 1024**3
    prefix_cache_bytes: int = 1024**3
    min_segment_tokens: int = 24
    max_running: int = 16
    max_build_tokens: int = 8192
    threads: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"dtype must be auto, float32 or bfloat16, found {self.dtype!r}")
        for name in ("segment_cache_bytes", "prefix_cache_bytes", "threads"):
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
