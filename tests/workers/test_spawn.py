"""What each worker of a cluster is given."""

import math

import pytest

from hypic.config import EngineConfig
from hypic.workers.spawn import gpu_share, own_memory


def test_each_combine_worker_owns_its_directory_and_builders_own_none() -> None:
    engine = EngineConfig(cache_url="s3://bucket/cache/", host_cache_bytes=5)
    assert own_memory(engine, "combine-1", "combine").cache_url == "s3://bucket/cache/combine-1"
    assert own_memory(engine, "combine-1", "combine").host_cache_bytes == 5
    builder = own_memory(engine, "scatter-0", "scatter")
    assert (builder.cache_url, builder.host_cache_bytes) == ("", 0)
    assert own_memory(EngineConfig(), "combine-0", "combine").cache_url == ""


@pytest.mark.parametrize(("workers", "gpus"), [(3, 1), (3, 2), (3, 3), (2, 8), (7, 3)])
def test_workers_fit_on_the_gpus_that_there_are(workers: int, gpus: int) -> None:
    share = gpu_share(workers, gpus)
    assert 0 < share <= 1
    assert gpus * math.floor(1 / share + 1e-9) >= workers
    assert share == 1.0 or gpus < workers


def test_without_a_gpu_none_is_given() -> None:
    assert gpu_share(3, 0) == 1.0
