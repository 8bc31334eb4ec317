"""Trains the bundled model on the task of `hypic.eval.recall`: `python -m hypic.eval.train_recall --seed 0 --out DIR`.

The model is transformers' own Qwen3_5ForCausalLM with the start of `hypic.eval.recall_model`. Same seed, same machine:
same result. Scores of the saved model, with and without each kind of layer, are printed and written as
training_report.json; the arms of the engine are measured by `hypic eval quality`, not here.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM

from hypic.arms import DEFAULT_SEAM_TOKENS
from hypic.eval import recall
from hypic.eval.recall import PROBES, Fact, Split
from hypic.eval.recall_model import VOCABULARY, Vocabulary, build_model

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
STEPS, TOKENS_PER_STEP, LEARNING_RATE, WARM_UP = 700, 2800, 7e-4, 30
QUESTIONS_PER_CONTEXT = 20
ISOLATED = 0.5  # share of steps whose documents do not see each other in full attention, as when they are reused
WORDS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Row:
    """ids: of tokens. labels: the same where the loss counts, else -100. starts: where each document starts, and
    where the question does; empty where nobody asks."""

    ids: list[int]
    labels: list[int]
    starts: tuple[int, ...] = ()


def build_tokenizer(text: Path | None) -> Tokenizer:
    """Byte-level BPE over the task's words and, to fit plain English, the documents of a JSON lines file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = list(_task_text())
    if text is not None:
        for line in text.read_text(encoding="utf-8").splitlines():
            lines += [document["text"] for document in json.loads(line)["documents"]]
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def _task_text() -> Iterator[str]:
    """Text in which every word of the task is frequent enough to become one token, those of test patterns too."""
    rng = random.Random(0)
    splits: tuple[Split, ...] = ("train", "test")
    for _ in range(3000):
        for split in splits:
            scene = recall.scene(rng, split, 4, 12, 0.2, 0.2)
            yield from map(recall.section, scene.texts())
            for fact in scene.facts:
                yield f"{recall.ask(rng, split, fact)}\n"
                yield fact.value
                yield fact.holder.split()[0]
        yield f"system\n{rng.choice(recall.SYSTEMS)}\nuser\nassistant\n"


class Prompts:
    """Turns scenes into token ids, section by section, as a server does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.encode(END).ids[0]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def vocabulary(self) -> Vocabulary:
        holders = recall.FIRST_NAMES + recall.LAST_NAMES + recall.CALL_SIGNS
        return Vocabulary(self.encode, holders, recall.VALUES, recall.VALUES + recall.CALL_SIGNS)

    def leading(self, system: str | None) -> list[int]:
        before = f"{START}system\n{system}{END}\n" if system else ""
        return self.encode(f"{before}{START}user\n")

    def turn(self, question: str, answer: str) -> Row:
        asked, said = self.encode(f"{question}{END}\n{START}assistant\n"), self.encode(f"{answer}{END}")
        return Row(asked + said, [-100] * len(asked) + said)

    def example(self, example: recall.RecallExample) -> Row:
        ids = self.leading(None)
        for text in example.sections:
            ids += self.encode(text)
        turn = self.turn(example.question, example.answer)
        return Row(ids + turn.ids, [-100] * len(ids) + turn.labels)

    def training_context(self, rng: random.Random, documents: int) -> Row:
        """Documents and up to QUESTIONS_PER_CONTEXT questions on them, turn after turn."""
        scene = recall.scene(rng, "train", documents, rng.randint(documents, 3 * documents // 2 + 2), 0.4, 0.5)
        ids = self.leading(rng.choice(recall.SYSTEMS) if rng.random() < 0.3 else None)
        starts = []
        for text in scene.texts():
            starts.append(len(ids))
            ids += self.encode(recall.section(text))
        starts.append(len(ids))
        labels = [-100] * len(ids)
        for number, fact in enumerate(rng.sample(scene.facts, min(QUESTIONS_PER_CONTEXT, len(scene.facts)))):
            between = self.encode(f"\n{START}user\n") if number else []
            turn = self.turn(*_training_question(rng, fact))
            ids += between + turn.ids
            labels += [-100] * len(between) + turn.labels
        return Row(ids, labels, tuple(starts))


def _training_question(rng: random.Random, fact: Fact) -> tuple[str, str]:
    """A question and its answer; of a holder known by call sign, sometimes the call sign itself is asked."""
    if fact.holder != fact.asked and rng.random() < 0.25:
        pattern = rng.choice(("Which call sign was given to {}?", "What is the call sign of {}?"))
        return pattern.format(fact.asked), fact.holder
    return recall.ask(rng, "train", fact), fact.value


def padded(rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Ids and labels [rows, T]; what is padded stands at the end, where causal layers do not see it."""
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full((len(rows), length), -100)
    for number, row in enumerate(rows):
        ids[number, : len(row.ids)] = torch.tensor(row.ids)
        labels[number, : len(row.labels)] = torch.tensor(row.labels)
    return ids, labels


def isolation(rows: list[Row], length: int) -> Tensor:
    """[rows, 1, T, T], True where attention may look when documents are reused: a document's tokens after its seam
    see their own document alone."""
    mask = torch.ones(len(rows), 1, length, length, dtype=torch.bool).tril()
    for number, row in enumerate(rows):
        for start, end in pairwise(row.starts):
            mask[number, :, start + DEFAULT_SEAM_TOKENS : end, :start] = False
    return mask


def loss_and_accuracy(model: Any, rows: list[Row], end: int, isolated: bool) -> tuple[Tensor, float]:
    """Cross entropy on the answers, the ends of turns weighing a tenth, and the share of right answer words."""
    ids, labels = padded(rows)
    masks = {"full_attention": isolation(rows, ids.shape[1]), "linear_attention": None} if isolated else None
    hidden = model.model(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state[:, :-1]
    wanted = labels[:, 1:]
    counted = wanted != -100
    logits, targets = model.lm_head(hidden[counted]), wanted[counted]
    weights = torch.where(targets == end, 0.1, 1.0)
    losses = F.cross_entropy(logits, targets, reduction="none")
    right = (logits.argmax(-1) == targets)[targets != end]
    return (losses * weights).sum() / weights.sum(), right.float().mean().item()


def train(model: Any, prompts: Prompts, seed: int, steps: int, say: Callable[[str], None]) -> None:
    """AdamW with warm-up and a linear end; documents grow from 2 to 16 over the first two fifths."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))
    rng = random.Random(seed)
    seen, begun = 0.0, time.monotonic()
    model.train()
    for step in range(steps):
        most = 2 + int(14 * min(1.0, step / (0.4 * steps)) ** 2)
        documents = rng.randint(max(2, most // 2), most)
        rows = [prompts.training_context(rng, documents)]
        while sum(len(row.ids) for row in rows) + len(rows[-1].ids) <= TOKENS_PER_STEP:
            rows.append(prompts.training_context(rng, documents))
        rate = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP, max(0.02, (steps - step) / (0.6 * steps)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss, right = loss_and_accuracy(model, rows, prompts.end, rng.random() < ISOLATED)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += right / 50
        if step % 50 == 49:
            spent = time.monotonic() - begun
            say(
                f"step {step + 1}/{steps}  documents <= {most}  loss {loss.item():.3f}  right {seen:.3f}  {spent:.0f} s"
            )
            seen = 0.0


ABLATIONS: dict[str, tuple[int, ...]] = {
    "none": (),
    "full attention": (1, 3),
    "linear attention": (0, 2),
    "layer 0": (0,),
    "layer 1": (1,),
    "layer 2": (2,),
    "layer 3": (3,),
}


@contextmanager
def silenced(model: Any, layers: tuple[int, ...]) -> Iterator[None]:
    """The mixers of the given layers put out zeros."""

    def zero(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (torch.zeros_like(output[0]), *output[1:])
        return torch.zeros_like(output)

    chosen = [model.model.layers[index] for index in layers]
    mixers = [layer.linear_attn if hasattr(layer, "linear_attn") else layer.self_attn for layer in chosen]
    handles = [mixer.register_forward_hook(zero) for mixer in mixers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def exact_answers(model: Any, prompts: Prompts, examples: list[recall.RecallExample], batch: int = 10) -> float:
    """Percent of examples whose greedy answer is exact: each token of it, its end included, is the likeliest."""
    model.eval()
    right = 0
    for start in range(0, len(examples), batch):
        ids, labels = padded([prompts.example(example) for example in examples[start : start + batch]])
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        wanted = labels[:, 1:]
        counted = wanted != -100
        hit = torch.ones_like(counted)
        hit[counted] = model.lm_head(hidden[counted]).argmax(-1) == wanted[counted]
        right += int(hit.all(dim=1).sum())
    return 100 * right / len(examples)


def measure(model: Any, prompts: Prompts, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Exact answers in percent: {documents: {ablation: {probe or "mean": score}}}."""
    report: dict[str, Any] = {}
    for documents in (8, 16):
        report[str(documents)] = {}
        for ablation, layers in ABLATIONS.items():
            asked = count if not layers else max(1, count // 4)
            with silenced(model, layers):
                scores = {
                    probe: exact_answers(model, prompts, recall.examples(probe, asked, documents, 0))
                    for probe in PROBES
                }
            scores["mean"] = sum(scores.values()) / len(PROBES)
            report[str(documents)][ablation] = scores
            row = "  ".join(f"{name} {score:5.1f}" for name, score in scores.items())
            say(f"{documents} documents, zeroed: {ablation:17s} {row}")
    return report


def save(model: Qwen3_5ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """A directory that transformers and the engine load as it is."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config.eos_token_id = 2
    model.generation_config.pad_token_id = 0
    model.generation_config.do_sample = False
    model.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [START],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the bundled recall model.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="directory of the finished model")
    parser.add_argument("--text", type=Path, help="JSON lines with documents, for the tokenizer alone")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to use instead of training one")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--count", type=int, default=200, help="questions a probe in the final measurement")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def say(line: str) -> None:
        print(line, flush=True)

    tokenizer = Tokenizer.from_file(str(options.tokenizer)) if options.tokenizer else build_tokenizer(options.text)
    prompts = Prompts(tokenizer)
    model = build_model(options.seed, prompts.vocabulary())
    parameters = sum(weight.numel() for weight in model.parameters())
    say(f"seed {options.seed}: {parameters} parameters")
    begun = time.monotonic()
    train(model, prompts, options.seed, options.steps, say)
    spent = time.monotonic() - begun
    save(model, tokenizer, options.out)
    report = {
        "seed": options.seed,
        "steps": options.steps,
        "parameters": parameters,
        "training_seconds": round(spent),
        "questions_per_probe": options.count,
        "exact_answers": measure(model, prompts, options.count, say),
    }
    (options.out / "training_report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
