"""One worker and one application for all tests of routes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_service import app_over, client_of, listening
from starlette.testclient import TestClient

from hypic.router.service import ServedModel
from hypic.tokenizer import PromptTokenizer
from hypic.workers.combine import CombineWorker


@pytest.fixture(scope="session")
def combine(engine_config: Any) -> Iterator[CombineWorker]:
    worker = CombineWorker("combine-0", engine_config)
    yield worker
    worker.stop()


@pytest.fixture(scope="session")
def model(chatty_checkpoint: Path) -> ServedModel:
    return ServedModel("tiny", PromptTokenizer.load(chatty_checkpoint), 4096, "hypic", 0)


@pytest.fixture(scope="module")
def client(combine: CombineWorker, scatter_ports: Any, model: ServedModel) -> Iterator[TestClient]:
    for port in scatter_ports:
        port.broken = False
    with client_of(app_over(combine, scatter_ports, model)) as client:
        yield client


@pytest.fixture(scope="session")
def url(combine: CombineWorker, scatter_ports: Any, model: ServedModel) -> Iterator[str]:
    """The same over a socket, for clients that bring their own connections."""
    with listening(app_over(combine, scatter_ports, model)) as url:
        yield url
