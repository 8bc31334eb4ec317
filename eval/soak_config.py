"""Settings of `hypic bench soak`; the command line is made from these fields."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SoakConfig:
    """The load. minutes: of load. clients: that ask at the same time. faults: worker processes that are killed, all in
    the first half. prompts: different ones. seed: of everything that is drawn at random.
    """

    minutes: float = 1.0
    clients: int = 4
    faults: int = 2
    prompts: int = 24
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.clients, self.prompts) < 1 or self.faults < 0:
            raise ValueError("clients and prompts must be at least 1, and faults not negative")
        if not 0.05 <= self.minutes <= 24 * 60:
            raise ValueError(f"minutes must be from 0.05 to a day, found {self.minutes}")
