"""Settings of `hypic bench chaos`; the command line is made from these fields."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChaosConfig:
    """What happens. requests: in all. every: requests between one fault and the next. clients: that ask at the same
    time, one request after another. prompts: different ones. seed: of requests and faults; the same seed gives the same
    ones, though not the same moments.
    """

    requests: int = 300
    every: int = 15
    clients: int = 4
    prompts: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.requests, self.every, self.clients, self.prompts) < 1:
            raise ValueError("requests, every, clients and prompts must be at least 1")
