"""A process that is killed while it writes to disk: the next one finds what was whole, and nothing of the rest."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hypic.cache.entry import SegmentEntry
from hypic.cache.memory import Memory
from hypic.cache.store import Store
from hypic.cache.tiers.codec import EngineCodec
from hypic.cache.tiers.files import FileTier
from hypic.cache.tiers.ram import RamTier
from hypic.linear.operators import OperatorFormats, Operators

BUDGET = 12_000_000


def entry(seed: int) -> SegmentEntry:
    """About 400 kB whose every number is its seed."""
    return SegmentEntry(
        key=seed.to_bytes(32, "little"),
        token_ids=np.full(64, seed, np.int32),
        seam_tokens=8,
        operators=Operators.of(
            torch.eye(16).expand(2, 4, 16, 16), torch.zeros(2, 4, 16, 16), OperatorFormats(0, "fp32")
        ),
        conv_tails=torch.zeros(2, 3, 8),
        keys=torch.full((2, 56, 4, 128), float(seed)),
        values=torch.full((2, 56, 4, 128), float(seed)),
    )


def store_on(path: Path) -> Store[SegmentEntry]:
    return Store(Memory([RamTier("device", 2_000_000), FileTier(str(path), BUDGET, EngineCodec())], write="through"))


def write_for_ever(path: Path) -> None:
    """Says each entry once it is written; old ones have to go for new ones all the time."""
    store, seed = store_on(path), 0
    while True:
        seed += 1
        store.insert(entry(seed))
        print(seed, flush=True)


@pytest.mark.parametrize("after", [2, 40])
def test_what_was_whole_is_found_and_nothing_else(tmp_path: Path, after: int) -> None:
    writer = subprocess.Popen([sys.executable, __file__, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = 0
    while said < after:
        said = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)  # somewhere in the middle of the next one
    said = int((writer.stdout.read().split() or [said])[-1])
    assert writer.wait(timeout=10) == -signal.SIGKILL
    store = store_on(tmp_path)
    found = store.restore()
    assert found >= min(after, 20), "what was written down before is there, but for what had to go"
    assert not list(tmp_path.rglob("*.writing-*")), "nothing half-written is left"
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) <= BUDGET
    for seed in range(1, said + 2):
        with store.leased(entry(seed).key) as again:
            if again is not None:
                assert torch.equal(again.keys, entry(seed).keys)
                assert again.matches(entry(seed).token_ids)
    store.check()


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]))
