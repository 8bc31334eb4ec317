"""Settings of the engine, the cluster and the server. The command line is made from these fields."""

from dataclasses import dataclass
from pathlib import Path

BUNDLED_MODEL = Path(__file__).parent / "assets" / "recall"


@dataclass(frozen=True)
class EngineConfig:
    """One engine: its model and its memory.

    model: a checkpoint directory. dtype: "auto" takes the checkpoint's. cache_bytes: what is ready to use, documents
    and prefixes of prompts together, in true bytes. host_cache_bytes: RAM below that, 0 for none. cache_url: a
    directory or an object store (fsspec) below that, which outlives the process, "" for none. disk_cache_bytes: its
    budget. cache_write: "back" writes down what has to leave the tier above, "through" everything at once.
    cache_policy: what goes first, "lru" or "cost", which weighs the seconds to recompute something by its bytes and its
    uses.
    transition_tolerance: how far the transition operators of cached segments may be off, in spectral norm: each head
    takes the smallest format within it, 0 keeps float32. state_format: of the states of cached segments, fp32, bf16 or
    int8.
    min_segment_tokens: shorter documents are simply computed. max_running: requests decoded together.
    max_waiting: requests that wait for their first token; one more is refused, since its answer would come too late.
    max_build_tokens: cold segments are prefilled in packed batches of about this size. max_prefill_tokens: of a prompt
    computed between two tokens of those who decode; a longer pass goes on in the next step. 2048 are enough to keep an
    accelerator busy with one reading of the weights, and few enough that nobody sees a text stop. threads: of torch, 0
    leaves its default.
    """

    model: Path = BUNDLED_MODEL
    dtype: str = "auto"
    device: str = "cpu"
    cache_bytes: int = 3 * 1024**3
    host_cache_bytes: int = 0
    cache_url: str = ""
    disk_cache_bytes: int = 16 * 1024**3
    cache_write: str = "back"
    cache_policy: str = "cost"
    transition_tolerance: float = 1e-3
    state_format: str = "int8"
    min_segment_tokens: int = 24
    max_running: int = 16
    max_waiting: int = 256
    max_build_tokens: int = 8192
    max_prefill_tokens: int = 2048
    threads: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"dtype must be auto, float32 or bfloat16, found {self.dtype!r}")
        if self.cache_write not in ("back", "through"):
            raise ValueError(f"cache_write must be back or through, found {self.cache_write!r}")
        if self.cache_policy not in ("lru", "cost"):
            raise ValueError(f"cache_policy must be lru or cost, found {self.cache_policy!r}")
        if self.transition_tolerance and not 1e-9 <= self.transition_tolerance < 1:
            raise ValueError(f"transition_tolerance must be 0, or from 1e-9 to 1, found {self.transition_tolerance}")
        if self.state_format not in ("fp32", "bf16", "int8"):
            raise ValueError(f"state_format must be fp32, bf16 or int8, found {self.state_format!r}")
        for name in ("cache_bytes", "host_cache_bytes", "disk_cache_bytes", "threads"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, found {getattr(self, name)}")
        for name in ("min_segment_tokens", "max_running", "max_waiting", "max_build_tokens", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}")


@dataclass(frozen=True)
class ClusterConfig:
    """The Ray side. address: of a running cluster, "" starts a local one. placement: of cold segments; "auto" prefills
    them on the scatter workers where that is predicted to be done sooner than on the combine worker, "lpt" always.
    """

    scatter_workers: int = 2
    combine_workers: int = 1
    placement: str = "auto"
    address: str = ""

    def __post_init__(self) -> None:
        if self.scatter_workers < 0 or self.combine_workers < 1:
            raise ValueError(
                "there must be at least one combine worker and no negative number of scatter workers, found "
                f"{self.combine_workers} and {self.scatter_workers}"
            )
        if self.placement not in ("auto", "lpt", "round_robin", "local"):
            raise ValueError(f"placement must be auto, lpt, round_robin or local, found {self.placement!r}")


@dataclass(frozen=True)
class ServerConfig:
    """The HTTP side. host: 127.0.0.1 is heard on this machine alone. pic: the arm of requests that name none, or "auto"
    to measure the arms on this checkpoint at the start and take the one nearest to a full recompute. pic_tolerance: how
    far that may be, in nats of the next-token distribution; beyond it only exact prefixes are reused. api_keys: a TOML
    file of SHA-256 hashes of keys and their tenants; without one nobody is asked for a key. max_requests: on their way
    at the same time, beyond which new ones are refused. max_body_bytes: of one request. max_open_body_bytes: of all
    requests that are open, beyond which new ones have to wait. max_documents,
    max_document_bytes, max_segments, max_messages: of one request. max_prompt_tokens: 0 for what the model reads.
    max_prompts, max_choices: prompts of one completion request, answers to one prompt. max_stop_strings,
    max_top_logprobs: of one request. body_seconds: how long a client may take to send its body. token_cache_bytes:
    token ids of documents that were sent before. request_log: a file that gets a line of JSON for each request, "-" for
    stdout, "" for none. otlp_endpoint: base URL of an OpenTelemetry collector that takes traces over HTTP, "" for none.
    drift_share: of the requests, 0 to 1, that are computed once more in full while nothing else is to be done, to
    measure how far their first tokens are from that.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    pic: str = "hypic"
    pic_tolerance: float = 0.1
    api_keys: Path | None = None
    max_requests: int = 256
    max_body_bytes: int = 32 * 1024**2
    max_open_body_bytes: int = 256 * 1024**2
    max_documents: int = 1024
    max_document_bytes: int = 8 * 1024**2
    max_segments: int = 4096
    max_messages: int = 4096
    max_prompt_tokens: int = 0
    max_prompts: int = 32
    max_choices: int = 16
    max_stop_strings: int = 16
    max_top_logprobs: int = 20
    body_seconds: float = 30.0
    token_cache_bytes: int = 64 * 1024**2
    request_log: str = ""
    otlp_endpoint: str = ""
    drift_share: float = 0.0

    def __post_init__(self) -> None:
        if self.pic_tolerance < 0:
            raise ValueError(f"pic_tolerance must not be negative, found {self.pic_tolerance}")
        for name in ("max_prompt_tokens", "max_documents", "max_stop_strings", "max_top_logprobs", "token_cache_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, found {getattr(self, name)}")
        for name in (
            "max_requests",
            "max_body_bytes",
            "max_document_bytes",
            "max_segments",
            "max_messages",
            "max_prompts",
            "max_choices",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, found {getattr(self, name)}")
        if self.max_open_body_bytes < self.max_body_bytes:
            raise ValueError(
                "max_open_body_bytes must not be below max_body_bytes: the largest body could never come in"
            )
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ValueError(f"otlp_endpoint must be an http or https URL, found {self.otlp_endpoint!r}")
        if not 0 <= self.drift_share <= 1:
            raise ValueError(f"drift_share must be in 0 to 1, found {self.drift_share}")
        if self.body_seconds <= 0:
            raise ValueError(f"body_seconds must be above 0, found {self.body_seconds}")
