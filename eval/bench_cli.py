"""Commands of `hypic bench` that look at one mechanism: transition operators, composition, kernels."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hypic.config import EngineConfig
from hypic.eval.options import Full, Json, Out, Seed, with_config

Model = Annotated[
    Path | None, typer.Option(help="A checkpoint directory; a random Qwen3.5 made for timing by default.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Timed rounds, each arm once in each.")]
Threads = Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its default.")]


class DType(StrEnum):
    """What kernels are timed in."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@with_config
def transition(
    engine: EngineConfig,
    model: Model = None,
    document_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the document.")] = 1024,
    rounds: Rounds = 9,
    threads: Threads = 1,
    full: Full = False,
    json: Json = False,
    out: Out = None,
) -> None:
    """What transition operators cost: their share of a document's first prefill, and bytes at published geometries."""
    from hypic.eval.report import emit
    from hypic.eval.transition_bench import run_transition

    emit(run_transition(replace(engine, threads=threads), model, document_tokens, rounds, full), as_json=json, out=out)


@with_config
def compose(
    engine: EngineConfig,
    model: Model = None,
    documents: Annotated[int, typer.Option(min=1, help="Warm documents before the one that is looked at.")] = 8,
    more: Annotated[int, typer.Option(min=1, help="Warm documents added at once; the time is divided by it.")] = 8,
    document_tokens: Annotated[int, typer.Option(min=32, help="Tokens of a document, about.")] = 1024,
    rounds: Rounds = 9,
    threads: Threads = 1,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
) -> None:
    """What one more warm document adds to a prompt, against computing it in the same place. Refuses to time wrong
    results."""
    from hypic.eval.compose_bench import run_compose
    from hypic.eval.report import emit

    config = replace(engine, threads=threads)
    emit(run_compose(config, model, documents, more, document_tokens, rounds, seed), as_json=json, out=out)


def kernels(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[DType, typer.Option(help="Of the inputs.")] = DType.float32,
    rounds: Rounds = 9,
    threads: Threads = 1,
    json: Json = False,
    out: Out = None,
) -> None:
    """Each kernel against its reference, and the share of the device's bandwidth and arithmetic that it reaches. On a
    CPU the references alone."""
    import torch

    from hypic.eval.kernel_bench import run_kernels
    from hypic.eval.report import emit

    if threads:
        torch.set_num_threads(threads)
    emit(run_kernels(device, dtype.value, rounds), as_json=json, out=out)
