"""Fixtures that every folder of tests shares."""

import os

import torch

if not torch.cuda.is_available():  # before anything imports triton; on a GPU the same tests run compiled
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from pathlib import Path

import pytest
from checkpoints import write_checkpoint


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random qwen3_5 checkpoint with a byte-level tokenizer; tests do not write into it."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny")
