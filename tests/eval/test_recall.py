"""The recall task draws the same from the same seed and holds out what it says; the bundled model answers it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3_5ForCausalLM

from hypic.config import BUNDLED_MODEL
from hypic.eval import recall
from hypic.eval.recall import PROBES, RecallExample, examples
from hypic.eval.train_recall import Prompts, exact_answers, silenced

every_probe = pytest.mark.parametrize("probe", PROBES)


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json")))


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    """On one thread: the model is too small for more to help."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL).eval()
    torch.set_num_threads(threads)


def tellings(example: RecallExample, holder: str) -> list[tuple[int, str]]:
    """(document, sentence) of each sentence on a holder."""
    assert example.documents is not None
    return [
        (number, sentence)
        for number, (_, text) in enumerate(example.documents)
        for sentence in text.split(". ")
        if holder in sentence
    ]


def asked(example: RecallExample) -> str:
    return " ".join(example.question.rstrip("?.").split()[-2:])


@every_probe
def test_same_seed_same_examples(probe: str) -> None:
    assert examples(probe, 5, 4, 7) == examples(probe, 5, 4, 7)
    assert examples(probe, 5, 4, 7) != examples(probe, 5, 4, 8)
    assert examples(probe, 5, 4, 7)[:3] == examples(probe, 3, 4, 7)


@every_probe
def test_examples_hold_what_they_promise(probe: str, prompts: Prompts) -> None:
    for example in examples(probe, 20, 8, 3):
        assert example.probe == probe
        assert len(example.sections) == 8
        assert example.answer in "".join(example.sections)
        assert asked(example) in recall.PEOPLE["test"]
        assert all(len(prompts.encode(text)) > 24 for text in example.sections)
        if example.documents is not None:
            assert tuple(map(recall.section, example.documents)) == example.sections


def test_plain_facts_are_told_once() -> None:
    for example in examples("plain", 20, 8, 3):
        ((_, sentence),) = tellings(example, asked(example))
        assert example.answer in sentence


def test_overwritten_facts_end_with_the_answer() -> None:
    for example in examples("overwritten", 20, 8, 3):
        (first, before), (last, after) = tellings(example, asked(example))
        assert first < last
        assert example.answer in after
        assert example.answer not in before


def test_two_hop_facts_need_two_documents() -> None:
    for example in examples("two_hop", 20, 8, 3):
        ((where, sentence),) = tellings(example, asked(example))
        sign = next(sign for sign in recall.CALL_SIGNS if sign in sentence)
        ((there, fact),) = [told for told in tellings(example, sign) if told[1] != sentence]
        assert where != there
        assert example.answer in fact
        assert example.answer not in sentence


def test_border_cuts_the_asked_fact(prompts: Prompts) -> None:
    for example in examples("border", 20, 8, 3):
        assert example.documents is None
        cut = next(number for number, text in enumerate(example.sections) if not text.endswith("\n\n"))
        head, tail = example.sections[cut], example.sections[cut + 1].split(".")[0] + "."
        assert tail.startswith(" ")
        assert f"{asked(example)} " in head.split(".")[-1] + tail
        assert example.answer in tail
        assert 3 <= len(prompts.encode(tail)) <= 8


def test_test_split_is_held_out() -> None:
    assert not set(recall.PEOPLE["train"]) & set(recall.PEOPLE["test"])
    for words in (recall.ALIASES, recall.QUESTIONS, recall.VERBS, recall.COPULAS):
        assert not set(words["train"]) & set(words["test"])
    assert not {pattern for pattern, _ in recall.FACTS["train"]} & {pattern for pattern, _ in recall.FACTS["test"]}
    names = {part for name in recall.PEOPLE["train"] for part in name.split()}
    assert {part for name in recall.PEOPLE["test"] for part in name.split()} <= names


@pytest.mark.parametrize(("probe", "documents"), [("nonsense", 4), ("two_hop", 1), ("plain", 0)])
def test_impossible_examples_are_refused(probe: str, documents: int) -> None:
    with pytest.raises(ValueError, match=probe):
        examples(probe, 1, documents, 0)


def test_model_loads_in_transformers_without_a_warning() -> None:
    model, loading = Qwen3_5ForCausalLM.from_pretrained(BUNDLED_MODEL, output_loading_info=True)
    assert isinstance(model, Qwen3_5ForCausalLM)
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    assert {"linear_attention", "full_attention"} == set(model.config.layer_types)


def test_model_is_small() -> None:
    assert sum(path.stat().st_size for path in Path(BUNDLED_MODEL).rglob("*") if path.is_file()) < 10_000_000


@pytest.mark.parametrize("text", ["Mara Velin has amber.", "naïve 東京 🦊\t\r\n  x = 1e-3", "<|im_end|> ", ""])
def test_tokenizer_round_trips(text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_chat_template_is_the_layout_of_training(prompts: Prompts) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    example = examples("plain", 1, 2, 0)[0]
    message = {"role": "user", "content": "".join(example.sections) + example.question}
    text = tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    row = prompts.example(example)
    prompt = [token for token, label in zip(row.ids, row.labels, strict=True) if label == -100]
    assert tokenizer(text)["input_ids"] == prompt


def test_model_answers(model: Any, prompts: Prompts) -> None:
    questions = [example for probe in PROBES for seed in range(4) for example in examples(probe, 10, 8, seed)]
    assert exact_answers(model, prompts, questions) >= 95


@pytest.mark.parametrize("layers", [(1, 3), (0, 2)], ids=["full", "linear"])
def test_model_needs_both_kinds_of_layers(layers: tuple[int, ...], model: Any, prompts: Prompts) -> None:
    questions = [example for probe in PROBES for example in examples(probe, 5, 8, 1)]
    with silenced(model, layers):
        assert exact_answers(model, prompts, questions) <= 70


def test_generation_gives_the_answer(model: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    example = examples("plain", 1, 4, 2)[0]
    message = {"role": "user", "content": "".join(example.sections) + example.question}
    inputs = tokenizer.apply_chat_template([message], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**inputs, max_new_tokens=8)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(ids, skip_special_tokens=True) == example.answer


def test_report_belongs_to_the_model() -> None:
    report = json.loads((BUNDLED_MODEL / "training_report.json").read_text())
    card = (BUNDLED_MODEL / "README.md").read_text()
    assert f"Seed {report['seed']}" in card
