"""Settings of the evaluations; the command line is made from these fields."""

from dataclasses import dataclass


@dataclass(frozen=True)
class QualityConfig:
    """What is asked.

    dataset: recall, hotpotqa, triviaqa, musique, govreport, multinews, a file of JSON lines or Parquet, a folder, or
    OWNER/NAME:CONFIG:SPLIT on the Hugging Face hub. limit: questions of each set. documents: of a question, 0 for 8 in
    recall and all elsewhere. seed: of everything that is drawn at random. shuffle: documents in a drawn order.
    cold_share: share of a question's documents that nobody has met before; the others are cached when it comes.
    """

    dataset: str = "recall"
    limit: int = 25
    documents: int = 0
    seed: int = 0
    shuffle: bool = False
    cold_share: float = 0.0

    def __post_init__(self) -> None:
        if self.limit < 1 or self.documents < 0:
            raise ValueError(f"limit must be at least 1 and documents 0 or more, found {self.limit}, {self.documents}")
        if not 0 <= self.cold_share <= 1:
            raise ValueError(f"cold_share must be in 0 to 1, found {self.cold_share}")


@dataclass(frozen=True)
class FidelityConfig:
    """What is compared.

    dataset: as of `hypic eval quality`. limit: prompts of each set. documents: of a prompt, 0 for 8 in recall and all
    elsewhere. seed: of everything that is drawn at random. seams: widths of the seam to sweep, separated by commas, ""
    for none.
    """

    dataset: str = "recall"
    limit: int = 4
    documents: int = 0
    seed: int = 0
    seams: str = "0,4,8,16,32"

    def __post_init__(self) -> None:
        if self.limit < 1 or self.documents < 0:
            raise ValueError(f"limit must be at least 1 and documents 0 or more, found {self.limit}, {self.documents}")
        if not all(part.strip().isdecimal() for part in self.seams.split(",") if self.seams):
            raise ValueError(f"seams must be numbers of tokens, separated by commas, found {self.seams!r}")

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths to sweep, each once, rising."""
        return tuple(sorted({int(part) for part in self.seams.split(",") if self.seams}))
