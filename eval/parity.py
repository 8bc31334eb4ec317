"""`hypic eval parity`: logits of our full forward against Hugging Face transformers, in float32 on the CPU.

By default every architecture is tried on random checkpoints written for the purpose, with tied and untied embeddings;
with a model, that checkpoint alone. The same weights are then timed in both, in turns.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hypic.batch import DecodeBatch, PrefillBatch
from hypic.errors import UnsupportedModelError
from hypic.eval.algebra import one_thread
from hypic.eval.random_model import silence_transformers, small_shape, tiny_shape, write_random_model
from hypic.eval.report import Report, Table, say
from hypic.models.contract import HybridModel
from hypic.models.load import architectures, load_config, load_model
from hypic.sequence import Active, Sequence, SequenceCache

PROMPT_TOKENS = (1, 2, 63, 130)
GREEDY_TOKENS = 8
LIMIT = 1e-4


def run_parity(model: Path | None, timed_tokens: int, repeats: int, seed: int) -> Report:
    """Compare one checkpoint, or random ones of every architecture. timed_tokens: of the timed prompt, 0 for no timing.

    Raises ModelNotFoundError, CheckpointError or UnsupportedModelError for a given model.
    """
    silence_transformers()
    with one_thread():  # models are small; and with more, whoever is disturbed by other programs loses the race
        found, skipped = _run(model, timed_tokens, repeats, seed)
    results = {"limit": LIMIT, "architectures": found, "skipped": skipped}
    return Report("eval parity", str(model or "random weights"), "cpu", results, (_table(found, skipped),))


def _run(
    model: Path | None, timed_tokens: int, repeats: int, seed: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Figures by architecture, and why others have none."""
    found: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    if model is not None:
        name = str(load_config(model).model_type).removesuffix("_text")
        found[name] = {**compare(model, seed), **race(model, timed_tokens, repeats, seed)}
    else:
        for name, model_type in text_model_types().items():
            say(f"{name}: random checkpoints, ours and transformers'")
            try:
                found[name] = _architecture(model_type, timed_tokens, repeats, seed)
            except UnsupportedModelError as error:
                skipped[name] = str(error)
    return found, skipped


def text_model_types() -> dict[str, str]:
    """Served architecture (its file's name) -> the `model_type` of its text model."""
    modules = architectures().values()
    return {module.__name__.rpartition(".")[2]: module.MODEL_TYPES[-1] for module in modules}


def compare(path: Path, seed: int) -> dict[str, Any]:
    """max_abs_logit_diff and max_abs_logit over prompts of odd lengths, and whether greedy texts agree."""
    ours, theirs = load_model(path, torch.float32), _theirs(path)
    generator = torch.Generator().manual_seed(seed)
    apart = largest = 0.0
    agree = True
    for tokens in PROMPT_TOKENS:
        ids = torch.randint(0, theirs.config.get_text_config().vocab_size, (tokens,), generator=generator)
        with torch.inference_mode():
            expected = theirs(ids[None]).logits[0]
            apart = max(apart, float((full_logits(ours, ids) - expected).abs().max()))
            largest = max(largest, float(expected.abs().max()))
            agree = agree and greedy(ours, ids, GREEDY_TOKENS) == _their_greedy(theirs, ids, GREEDY_TOKENS)
    return {"max_abs_logit_diff": apart, "max_abs_logit": largest, "greedy_equal": agree}


def race(path: Path, tokens: int, repeats: int, seed: int) -> dict[str, float]:
    """seconds_ours and seconds_transformers, medians of a full forward up to the last token's logits, in turns."""
    if not tokens:
        return {}
    ours, theirs = load_model(path, torch.float32), _theirs(path)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, theirs.config.get_text_config().vocab_size, (tokens,), generator=generator)
    runners: dict[str, Callable[[], object]] = {
        "seconds_ours": lambda: full_logits(ours, ids, last=True),
        "seconds_transformers": lambda: theirs(ids[None], use_cache=False, logits_to_keep=1),
    }
    times: dict[str, list[float]] = {name: [] for name in runners}
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for name, runner in runners.items():
                start = time.perf_counter()
                runner()
                times[name].append(time.perf_counter() - start)
    return {name: median(values[1:]) for name, values in times.items()}  # the first of each warms up


def full_logits(model: HybridModel, ids: Tensor, last: bool = False) -> Tensor:
    """float32 logits `[T, vocabulary]` of all tokens `[T]`, or of the last alone, by our forward."""
    cache = SequenceCache.empty(model.cache_spec(), len(ids))
    batch = PrefillBatch([Sequence(cache, (Active(len(ids)),), ids)])
    hidden = model.forward(batch)
    return model.logits(hidden[-1:] if last else hidden)


def greedy(model: HybridModel, ids: Tensor, count: int) -> list[int]:
    """`count` tokens by our prefill and decode."""
    cache = SequenceCache.empty(model.cache_spec(), len(ids) + count)
    batch = PrefillBatch([Sequence(cache, (Active(len(ids)),), ids)])
    logits = model.logits(model.forward(batch))[-1]
    batch.finish()
    tokens = [int(logits.argmax())]
    while len(tokens) < count:
        step = DecodeBatch(torch.tensor(tokens[-1:]), [cache])
        tokens.append(int(model.logits(model.forward(step))[0].argmax()))
        step.finish()
    return tokens


def _architecture(model_type: str, timed_tokens: int, repeats: int, seed: int) -> dict[str, Any]:
    """The worst of tied and untied embeddings on tiny checkpoints, and the race on a larger one. Raises
    UnsupportedModelError where transformers has no such model; an architecture may refuse tied embeddings."""
    with tempfile.TemporaryDirectory(prefix="hypic-parity-") as folder:
        outcomes = [_compare_random(Path(folder), model_type, tied=False, seed=seed)]
        with suppress(UnsupportedModelError):
            outcomes.append(_compare_random(Path(folder), model_type, tied=True, seed=seed))
        if timed_tokens:
            write_random_model(Path(folder), model_type, small_shape(model_type), seed)
        times = race(Path(folder), timed_tokens, repeats, seed)
    worst = {name: max(outcome[name] for outcome in outcomes) for name in ("max_abs_logit_diff", "max_abs_logit")}
    return {**worst, "greedy_equal": all(outcome["greedy_equal"] for outcome in outcomes), **times}


def _compare_random(path: Path, model_type: str, tied: bool, seed: int) -> dict[str, Any]:
    write_random_model(path, model_type, tiny_shape(model_type) | {"tie_word_embeddings": tied}, seed, gain=4.0)
    return compare(path, seed)


def _theirs(path: Path) -> Any:
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM  # untyped in transformers
    return auto.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()


def _their_greedy(model: Any, ids: Tensor, count: int) -> list[int]:
    output = model.generate(
        ids[None],
        attention_mask=torch.ones_like(ids[None]),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return output[0, len(ids) :].tolist()  # type: ignore[no-any-return]


def _table(found: dict[str, dict[str, Any]], skipped: dict[str, str]) -> Table:
    rows = []
    for name, row in found.items():
        ours, theirs = row.get("seconds_ours"), row.get("seconds_transformers")
        timed = (
            (f"{1000 * ours:.0f}", f"{1000 * theirs:.0f}", f"{theirs / ours:.2f}x") if ours and theirs else ("",) * 3
        )
        rows.append((name, f"{row['max_abs_logit_diff']:.1e}", "yes" if row["greedy_equal"] else "NO", *timed))
    columns = ("architecture", "logits apart", "greedy equal", "ms ours", "ms theirs", "faster")
    note = f"Logits in float32, at most {LIMIT:.0e} apart wanted; medians of full forwards in turns, one thread."
    if skipped:
        note += f" Not in transformers, so not compared: {', '.join(skipped)}."
    return Table("Parity with transformers", columns, tuple(rows), note)
