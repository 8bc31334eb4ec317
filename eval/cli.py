"""The command `hypic`. Each command reads its options, calls the module that does the work, and prints its report.

Heavy imports (torch, transformers, ray) stand inside the commands, so that help comes at once. Faults that a user can
mend end with one line on stderr and exit status 2.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hypic.arms import ARMS, arm_named
from hypic.config import BUNDLED_MODEL, ClusterConfig, EngineConfig, ServerConfig
from hypic.errors import HypicError, InvalidRequestError
from hypic.eval.bench_cli import compose, kernels, transition
from hypic.eval.chaos_config import ChaosConfig
from hypic.eval.options import Json, Out, Seed, with_config
from hypic.eval.scatter_config import ScatterConfig
from hypic.eval.serve_config import LoadConfig
from hypic.eval.settings import FidelityConfig, QualityConfig
from hypic.eval.soak_config import SoakConfig

app = typer.Typer(
    help="Position-independent caching for hybrid-attention language models, served on Ray.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
evaluations = typer.Typer(help="Is it right, and is it safe for a model?", no_args_is_help=True)
benchmarks = typer.Typer(help="What does it buy?", no_args_is_help=True)
app.add_typer(evaluations, name="eval")
app.add_typer(benchmarks, name="bench")
for command in (transition, compose, kernels):
    benchmarks.command()(command)

ALL_ARMS = ",".join(ARMS)
REUSING_ARMS = ",".join(arm.name for arm in ARMS.values() if arm.reuse_segments)

Arms = Annotated[str, typer.Option(help=f"Arms, separated by commas, of {', '.join(ARMS)}.")]
DataSet = Annotated[str, typer.Option(help="recall, hotpotqa, or a file of JSON lines: question, documents, answers.")]
Limit = Annotated[int, typer.Option(min=1, help="Questions of each set.")]
Documents = Annotated[int, typer.Option(min=1, help="Documents of a question.")]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; always ends by raising SystemExit."""
    try:
        app(arguments)
    except HypicError as error:
        print(f"hypic: {error}", file=sys.stderr)
        raise SystemExit(2) from error


@app.command()
@with_config
def demo(
    engine: EngineConfig,
    cluster: ClusterConfig,
    arms: Arms = "full,prefix,addition,hypic",
    json: Json = False,
    out: Out = None,
) -> None:
    """A question over documents, answered from cached segments on a local Ray cluster, arm by arm."""
    from hypic.eval.demo import run_demo
    from hypic.eval.report import emit

    emit(run_demo(engine, cluster, _names(arms)), as_json=json, out=out, shown=True)


@app.command()
@with_config
def serve(engine: EngineConfig, cluster: ClusterConfig, server: ServerConfig) -> None:
    """Serve a model over HTTP as OpenAI does, with documents that are prefilled once and reused anywhere."""
    if server.pic == "auto":
        from hypic.engine.engine import Engine
        from hypic.eval.auto_arm import choose_arm
        from hypic.eval.report import show

        choice = choose_arm(Engine(engine), server.pic_tolerance)
        show(choice.table())
        server = replace(server, pic=choice.arm)
    arm_named(server.pic)
    from hypic.router.app import serve_forever

    serve_forever(engine, cluster, server)


@app.command()
@with_config
def plan(
    engine: EngineConfig,
    request: Annotated[
        Path | None, typer.Argument(help="Body of a chat completion request: messages and documents.")
    ] = None,
    documents: Annotated[Path | None, typer.Option(help="Documents as JSON lines {id?, title?, text}.")] = None,
    question: Annotated[str, typer.Option(help="The question, where no request file is given.")] = "",
    system: Annotated[str, typer.Option(help="System message, where no request file is given.")] = "",
    arm: Annotated[str, typer.Option(help=f"One of {', '.join(ARMS)}.")] = "hypic",
    warm: Annotated[Path | None, typer.Option(help="Documents to build first, as JSON lines.")] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Show what would be reused of a prompt, and for each segment that would not, why. Nothing is generated."""
    from hypic.eval.planning import chat_prompt, read_prompt, run_plan
    from hypic.eval.report import emit
    from hypic.eval.workloads import read_documents

    if request is not None and (documents or question or system):
        raise InvalidRequestError("give either a request file or --documents, --question and --system, not both")
    found = read_documents(documents) if documents else []
    prompt = read_prompt(request) if request else chat_prompt(question, system, found)
    warm_documents = read_documents(warm) if warm else []
    emit(run_plan(engine, prompt, arm, warm_documents), as_json=json, out=out)


@app.command()
def warm(
    documents: Annotated[
        list[Path],
        typer.Argument(help="Files and directories: .jsonl has {id?, title?, text} a line, others one text."),
    ],
    url: Annotated[str, typer.Option(help="Of the running server.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str, typer.Option(help="Where the server asks for one.")] = "",
    salt: Annotated[str, typer.Option(help="`cache_salt` of the requests that will use the documents.")] = "",
    json: Json = False,
    out: Out = None,
) -> None:
    """Prefill documents on a running server, so that the first question over them finds them cached. Ends with status 1
    where one failed."""
    from hypic.eval.report import emit
    from hypic.eval.warming import WarmServer, find_documents, run_warm

    report = run_warm(WarmServer(url.rstrip("/"), api_key, salt), find_documents(documents))
    emit(report, as_json=json, out=out)
    if report.results["failed"]:
        raise typer.Exit(1)


@evaluations.command()
def algebra(
    splits: Annotated[int, typer.Option(min=1, help="Random splits of each text.")] = 64,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens of the text.")] = 2048,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
) -> None:
    """Composed states against a float64 token loop, every linear-attention family, one layer, no model."""
    from hypic.eval.algebra_report import report_algebra
    from hypic.eval.report import emit

    emit(report_algebra(splits, tokens, seed), as_json=json, out=out)


@evaluations.command()
def parity(
    model: Annotated[
        Path | None, typer.Option(help="A checkpoint directory; random ones of every architecture by default.")
    ] = None,
    timed_tokens: Annotated[int, typer.Option(min=0, help="Prompt of the timing, 0 for none.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Timed repeats, in turns.")] = 5,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
) -> None:
    """Logits, greedy texts and speed of our full forward against Hugging Face transformers, float32 on the CPU."""
    from hypic.eval.parity import run_parity
    from hypic.eval.report import emit

    emit(run_parity(model, timed_tokens, repeats, seed), as_json=json, out=out)


@evaluations.command()
@with_config
def quality(
    engine: EngineConfig,
    questions: QualityConfig,
    arms: Arms = ALL_ARMS,
    json: Json = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for JSON, Markdown and every answer; a stopped run goes on from it.")
    ] = None,
) -> None:
    """Answers of each arm, and how far its next-token distributions are from those of a full recompute."""
    from hypic.engine.engine import Engine
    from hypic.eval.quality import run_quality
    from hypic.eval.report import emit

    emit(run_quality(Engine(_settled(engine)), questions, _names(arms), out), as_json=json, out=out)


@evaluations.command()
@with_config
def fidelity(
    engine: EngineConfig, prompts: FidelityConfig, arms: Arms = REUSING_ARMS, json: Json = False, out: Out = None
) -> None:
    """Deviation of every layer's memory from a full recompute, by layer, position and width of the seam. Ends with
    status 1 where something that must be exact is not."""
    from hypic.engine.engine import Engine
    from hypic.eval.fidelity import run_fidelity
    from hypic.eval.report import emit

    report = run_fidelity(Engine(_settled(engine)), prompts, _names(arms))
    emit(report, as_json=json, out=out)
    if not report.results["passed"]:
        raise typer.Exit(1)


@evaluations.command("report")
def evaluation_report(
    folder: Annotated[Path, typer.Argument(help="What commands wrote to with --out.")],
    json: Json = False,
) -> None:
    """One page of tables and plots from a folder of results: report.html, which needs nothing else, and report.md."""
    from hypic.eval.report import emit
    from hypic.eval.report_page import run_eval_report

    emit(run_eval_report(folder), as_json=json, out=None)


@benchmarks.command()
@with_config
def ttft(
    engine: EngineConfig,
    model: Annotated[
        Path | None, typer.Option(help="A checkpoint directory; a random Qwen3.5 made for timing by default.")
    ] = None,
    arms: Arms = "full,prefix,hypic",
    documents: Documents = 16,
    document_tokens: Annotated[int, typer.Option(min=32, help="Tokens of a document, about.")] = 1024,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds: one request of prefix in each; full once in all.")] = 3,
    warm_repeats: Annotated[int, typer.Option(min=1, help="Requests a round of arms that reuse segments.")] = 5,
    threads: Annotated[int, typer.Option(min=0, help="Threads of torch; 0 leaves its default.")] = 1,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
) -> None:
    """Time to the first token over warm documents in shuffled order, arms in turns. Refuses to time wrong results."""
    from hypic.eval.report import emit
    from hypic.eval.ttft import Prompts, run_ttft

    prompts = Prompts(documents, document_tokens, seed)
    config = replace(engine, threads=threads)
    emit(run_ttft(config, model, _names(arms), prompts, rounds, warm_repeats), as_json=json, out=out)


def _settled(engine: EngineConfig) -> EngineConfig:
    """The bundled model runs on one thread unless told otherwise: it is too small for more to help."""
    return replace(engine, threads=1) if engine.model == BUNDLED_MODEL and not engine.threads else engine


def _names(arms: str) -> list[str]:
    """The arms of a comma-separated list. Raises InvalidRequestError for an empty one or an unknown name."""
    names = [name.strip() for name in arms.split(",") if name.strip()]
    if not names:
        raise InvalidRequestError(f"name at least one arm of {', '.join(ARMS)}")
    return [arm_named(name).name for name in names]


@benchmarks.command()
def cache(
    full: Annotated[bool, typer.Option("--full", help="All of both traces, more budgets, a million entries.")] = False,
    ragpulse: Annotated[Path | None, typer.Option(help="RAGPulse trace; the shipped sample by default.")] = None,
    mooncake: Annotated[Path | None, typer.Option(help="Mooncake trace; the shipped sample by default.")] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """What the cache's bookkeeping costs at 128k tokens and 50,000 leaves, and how much it keeps of two real traces."""
    from hypic.eval.cache_report import report_cache
    from hypic.eval.report import emit

    emit(report_cache(full, ragpulse, mooncake), as_json=json, out=out)


@benchmarks.command("serve")
@with_config
def serve_load(
    engine: EngineConfig,
    cluster: ClusterConfig,
    load: LoadConfig,
    arms: Arms = "prefix,hypic",
    json: Json = False,
    out: Out = None,
) -> None:
    """Requests a second that each arm sustains within a TTFT limit: a real trace over HTTP, at rising rates."""
    from hypic.eval.report import emit
    from hypic.eval.serve_bench import run_serve_bench

    emit(run_serve_bench(_settled(engine), cluster, load, _names(arms)), as_json=json, out=out)


@benchmarks.command()
@with_config
def scatter(
    engine: EngineConfig,
    measured: ScatterConfig,
    model: Annotated[
        Path | None, typer.Option(help="A checkpoint directory; a random Qwen3.5 made for timing by default.")
    ] = None,
    json: Json = False,
    out: Out = None,
) -> None:
    """Cold prompts prefilled by several workers: longest first against round robin, real and simulated."""
    from hypic.eval.report import emit
    from hypic.eval.scatter_bench import run_scatter

    emit(run_scatter(engine, model, measured), as_json=json, out=out)


@benchmarks.command()
@with_config
def chaos(engine: EngineConfig, measured: ChaosConfig, json: Json = False, out: Out = None) -> None:
    """Right answers or clear errors while workers die, stall and forget. Ends with status 1 where an answer was wrong,
    a request hung, or something is held at the end."""
    from hypic.eval.chaos import run_chaos
    from hypic.eval.report import emit

    report = run_chaos(engine, measured)
    emit(report, as_json=json, out=out)
    if not report.results["passed"]:
        raise typer.Exit(1)


@benchmarks.command()
@with_config
def soak(
    engine: EngineConfig, cluster: ClusterConfig, measured: SoakConfig, json: Json = False, out: Out = None
) -> None:
    """A server under mixed and hostile load for minutes, workers killed meanwhile. Ends with status 1 where an answer
    was wrong, something is held at the end, or memory or file handles grow."""
    from hypic.eval.report import emit
    from hypic.eval.soak import run_soak

    report = run_soak(engine, cluster, measured)
    emit(report, as_json=json, out=out)
    if not report.results["passed"]:
        raise typer.Exit(1)
