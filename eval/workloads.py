"""What requests are made of: sets of questions over documents, and documents of a wanted length.

Reading and cutting text is all that happens here; nothing is run.
"""

import hashlib
import json
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from hypic.errors import InvalidRequestError
from hypic.eval.adapters import Record, document, read_row
from hypic.eval.corpora import HOTPOTQA, Rows, open_rows, read_records
from hypic.eval.recall import PROBES, examples
from hypic.prompt import section_segments
from hypic.segment import Document, Segment
from hypic.tokenizer import PromptTokenizer, TextPart

Metric = Literal["exact_match", "f1", "rouge_l"]

RECALL_DOCUMENTS = 8
SHORT_ANSWER = "Answer the question from the documents, in as few words as possible."
SUMMARISE = "You summarise documents: one text that holds what matters in all of them."
SUMMARY_WANTED = "Write a summary of the documents above."

_ORDER_FREE = ("plain", "two_hop")
"""Probes of recall that stay true in any order of the documents."""


@dataclass(frozen=True)
class Question:
    """A question over sections of a prompt. answers: every accepted one. max_tokens: of an answer. system: of the
    chat, or None for a chat without a system message. metric: by which an answer is scored."""

    sections: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    max_tokens: int
    system: str | None = None
    metric: Metric = "exact_match"

    def segments(self, tokenizer: PromptTokenizer) -> tuple[Segment, ...]:
        """The prompt, laid out as in a chat."""
        return section_segments(tokenizer, self.sections, self.question, self.system)


def question_sets(
    dataset: str, limit: int, documents: int | None, seed: int, shuffle: bool = False
) -> dict[str, list[Question]]:
    """Sets of at most `limit` questions by name: the probes of `recall`, or what `open_rows` finds by that name.

    documents: of a question; None is 8 for recall and all of them elsewhere. A question over more documents keeps
    those that its answer stands in and fills up with others, in their order. shuffle: the documents of each question
    in an order drawn from the seed; of recall, only the probes that are true in any order. Raises InvalidRequestError
    where there is no such set, or a row is not of a known form.
    """
    if dataset == "recall":
        return _recall_sets(limit, RECALL_DOCUMENTS if documents is None else documents, seed, shuffle)
    name, rows = open_rows(dataset)
    questions = [_question(record, documents) for record in _drawn(rows, limit, seed)]
    if not questions:
        raise InvalidRequestError(f"none of the {len(rows)} rows of {dataset} holds a question with documents")
    return {name: [_shuffled(q, seed, number) if shuffle else q for number, q in enumerate(questions)]}


def questions_fingerprint(sets: dict[str, list[Question]]) -> str:
    """32 hex digits that name the very questions, their documents and answers, in their order."""
    record = {name: [asdict(question) for question in questions] for name, questions in sets.items()}
    text = json.dumps(record, ensure_ascii=False, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def read_documents(path: Path) -> list[Document]:
    """Documents of a file of JSON lines {id?, title?, text}."""
    return [document(record, str(path)) for record in read_records(path, ("text",))]


def long_documents(tokenizer: PromptTokenizer, count: int, tokens: int, seed: int) -> list[Document]:
    """`count` different documents of about `tokens` tokens each, of real HotpotQA paragraphs in a row.

    Paragraphs are used once each; where they run out, they are dealt again in another order.
    """
    rng = random.Random(seed)
    records = list(read_records(HOTPOTQA, ("documents",)))
    paragraphs = [document(entry, "hotpotqa").section for record in records for entry in record["documents"]]
    dealt: list[str] = []
    documents = []
    for number in range(count):
        text, room = "", tokens
        while room > 0:
            if not dealt:
                dealt = rng.sample(paragraphs, len(paragraphs))
            paragraph = dealt.pop()
            length = len(tokenizer.encode([TextPart(paragraph)]))
            text += paragraph if length <= room else _head(paragraph, room / length)
            room -= length
        documents.append(Document(text.strip(), None, f"long-{number + 1}"))
    return documents


def _head(text: str, share: float) -> str:
    """About that share of a text, cut between words."""
    return text[: int(len(text) * share)].rpartition(" ")[0]


def _recall_sets(limit: int, documents: int, seed: int, shuffle: bool) -> dict[str, list[Question]]:
    if documents < 2:
        raise InvalidRequestError(f"recall needs two documents or more, found {documents}")
    try:
        sets = {probe: _recall(probe, limit, documents, seed) for probe in (_ORDER_FREE if shuffle else PROBES)}
    except IndexError as error:  # from drawing names without replacement
        raise InvalidRequestError(f"recall has not enough names for {documents} documents; use fewer") from error
    if not shuffle:
        return sets
    return {probe: [_shuffled(q, seed, number) for number, q in enumerate(found)] for probe, found in sets.items()}


def _recall(probe: str, limit: int, documents: int, seed: int) -> list[Question]:
    return [
        Question(example.sections, example.question, (example.answer,), max_tokens=8)
        for example in examples(probe, limit, documents, seed)
    ]


def _drawn(rows: Rows, limit: int, seed: int) -> list[Record]:
    """The first `limit` rows that hold a question, in an order drawn from the seed: only those are looked at."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    found: list[Record] = []
    for at in order:
        if len(found) == limit:
            break
        record = read_row(rows[at])
        if record is not None:
            found.append(record)
    return found


def _question(record: Record, documents: int | None) -> Question:
    wanted = sorted(range(len(record.documents)), key=lambda at: (at not in record.needed, at))[:documents]
    sections = tuple(record.documents[at].section for at in sorted(wanted))
    if record.task == "summary":
        return Question(sections, SUMMARY_WANTED, record.answers, 512, SUMMARISE, "rouge_l")
    return Question(sections, record.question, record.answers, 32, SHORT_ANSWER, "f1")


def _shuffled(question: Question, seed: int, number: int) -> Question:
    rng = random.Random(f"{seed}/{number}")
    return replace(question, sections=tuple(rng.sample(question.sections, len(question.sections))))
