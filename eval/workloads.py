"""What requests are made of: sets of questions over documents, and documents of a wanted length.

Reading and cutting text is all that happens here; nothing is run.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypic.errors import InvalidRequestError
from hypic.eval.recall import PROBES, examples
from hypic.prompt import section_segments
from hypic.segment import Document, Segment
from hypic.tokenizer import PromptTokenizer, TextPart

HOTPOTQA = Path(__file__).resolve().parent / "data" / "hotpotqa.jsonl"
SHORT_ANSWER = "Answer the question from the documents, in as few words as possible."


@dataclass(frozen=True)
class Question:
    """A question over sections of a prompt. answers: every accepted one. max_tokens: of an answer. system: of the
    chat, or None for a chat without a system message."""

    sections: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    max_tokens: int
    system: str | None = None

    def segments(self, tokenizer: PromptTokenizer) -> tuple[Segment, ...]:
        """The prompt, laid out as in a chat."""
        return section_segments(tokenizer, self.sections, self.question, self.system)


def question_sets(dataset: str, limit: int, documents: int, seed: int) -> dict[str, list[Question]]:
    """Sets of at most `limit` questions by name: the probes of `recall`, the shipped sample `hotpotqa`, or a file.

    A file holds JSON lines with question, documents [{title?, text}] and answers. A question over more than
    `documents` documents keeps those with its supporting facts and fills up with others, in their order. Raises
    InvalidRequestError where there is no such set, or a line is not of that form.
    """
    if dataset == "recall":
        if documents < 2:
            raise InvalidRequestError(f"recall needs two documents or more, found {documents}")
        try:
            return {probe: _recall(probe, limit, documents, seed) for probe in PROBES}
        except IndexError as error:  # from drawing names without replacement
            raise InvalidRequestError(f"recall has not enough names for {documents} documents; use fewer") from error
    path = HOTPOTQA if dataset == "hotpotqa" else Path(dataset)
    if not path.is_file():
        raise InvalidRequestError(f"there is no data set {dataset!r}: use recall, hotpotqa or a file of JSON lines")
    records = list(read_records(path, ("question", "documents", "answers")))
    random.Random(seed).shuffle(records)
    return {path.stem: [_question(record, documents) for record in records[:limit]]}


def read_records(path: Path, required: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, each with the required keys. Raises InvalidRequestError with the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidRequestError(f"{path}:{number} is not JSON: {error}") from error
        missing = required if not isinstance(record, dict) else [key for key in required if key not in record]
        if missing:
            raise InvalidRequestError(f"{path}:{number} must be an object with {', '.join(required)}")
        yield record


def document(record: Any, where: str) -> Document:
    """A document from JSON: a text, or an object with text and perhaps title and id. where: named in an error."""
    if isinstance(record, str):
        return Document(record)
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise InvalidRequestError(f"{where}: a document is a text, or an object with text and perhaps title and id")
    title, name = record.get("title"), record.get("id")
    return Document(record["text"], None if title is None else str(title), None if name is None else str(name))


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


def _recall(probe: str, limit: int, documents: int, seed: int) -> list[Question]:
    return [
        Question(example.sections, example.question, (example.answer,), max_tokens=8)
        for example in examples(probe, limit, documents, seed)
    ]


def _question(record: dict[str, Any], documents: int) -> Question:
    found = [document(entry, str(record["question"])) for entry in record["documents"]]
    supporting = {fact[0] for fact in record.get("supporting_facts", ())}
    wanted = sorted(range(len(found)), key=lambda at: (found[at].title not in supporting, at))[:documents]
    sections = tuple(found[at].section for at in sorted(wanted))
    answers = tuple(str(answer) for answer in record["answers"])
    return Question(sections, str(record["question"]), answers, max_tokens=24, system=SHORT_ANSWER)
