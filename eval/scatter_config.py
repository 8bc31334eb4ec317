"""Settings of `hypic bench scatter`; the command line is made from these fields."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScatterConfig:
    """What is measured.

    workers: real scatter workers, at most. simulate: workers of the largest simulation, 0 for none. repeats: cold
    requests of each kind, in turns. full: segments of full length; without it of a quarter of that. seed: of
    everything that is drawn at random.
    """

    workers: int = 2
    simulate: int = 64
    repeats: int = 1
    full: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1 or self.repeats < 1 or self.simulate < 0:
            raise ValueError("workers and repeats must be at least 1, and simulate not negative")
