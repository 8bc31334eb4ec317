"""Settings of `hypic bench serve`; the command line is made from these fields."""

from dataclasses import dataclass

GATE_REQUESTS = 8
"""Requests whose answers are compared before anything is timed."""


@dataclass(frozen=True)
class LoadConfig:
    """The load. trace: ragpulse, mooncake, synthetic, or a file like the shipped traces. url: of a running server; ""
    starts one. rounds: rates to try with each arm. requests: of the trace in each round. lead: requests before them,
    asked one at a time. prompt_scale, output_scale: lengths in units of the trace's. arrivals: "trace" keeps its gaps
    relative to each other, "poisson" draws them. ttft_limit_ms: 0 takes 5 times what full takes without load.
    """

    trace: str = "ragpulse"
    url: str = ""
    rounds: int = 6
    requests: int = 60
    lead: int = 20
    prompt_scale: float = 1.0
    output_scale: float = 0.0625
    arrivals: str = "trace"
    ttft_limit_ms: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.arrivals not in ("trace", "poisson"):
            raise ValueError(f"arrivals must be trace or poisson, found {self.arrivals!r}")
        if self.prompt_scale <= 0 or self.output_scale <= 0:
            raise ValueError(f"scales must be above 0, found {self.prompt_scale} and {self.output_scale}")
        if self.rounds < 1 or self.requests < 2:
            raise ValueError(f"at least 1 round of 2 requests, found {self.rounds} of {self.requests}")
        if self.lead < GATE_REQUESTS:
            raise ValueError(f"lead must be at least {GATE_REQUESTS}, which the gate compares, found {self.lead}")
        if self.ttft_limit_ms < 0:
            raise ValueError(f"ttft_limit_ms must not be negative, found {self.ttft_limit_ms}")
