"""One small adapter for each published schema of a data set: a row becomes a question over documents.

Which adapter reads a row follows from its columns, so a local file needs no word on where it came from. Hugging Face
hands lists of records out as a record of lists or as a list of records, by version: both are read.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hypic.errors import InvalidRequestError
from hypic.segment import Document

Task = Literal["qa", "summary"]
Row = Mapping[str, Any]

CHUNK_WORDS = 400
"""Of a text that comes without borders of its own: a document of some 500 tokens."""

_PASSAGE = re.compile(r"^Passage \d+:\n", re.MULTILINE)


@dataclass(frozen=True)
class Record:
    """A row of a data set. needed: indices of the documents that the answer stands in, where the data set says so."""

    question: str
    documents: tuple[Document, ...]
    answers: tuple[str, ...]
    task: Task
    needed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Schema:
    """A published form of rows: the columns that tell it, and how a row is read (None: a row without a question that
    can be asked, such as an unanswerable one)."""

    name: str
    columns: tuple[str, ...]
    read: Callable[[Row], Record | None]


def read_row(row: Row) -> Record | None:
    """The question of a row, or None where it holds none. Raises InvalidRequestError for a schema that nobody knows,
    and where a column does not hold what its schema says."""
    for schema in SCHEMAS:
        if all(column in row for column in schema.columns):
            try:
                record = schema.read(row)
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise InvalidRequestError(
                    f"a row with the columns of {schema.name} does not hold what that data set holds there: {error!r}"
                ) from error
            return record if record is None or (record.documents and record.answers) else None
    known = "; ".join(f"{schema.name}: {', '.join(schema.columns)}" for schema in SCHEMAS)
    raise InvalidRequestError(f"no known data set has the columns {', '.join(row) or '(none)'}. Known are {known}")


def document(record: Any, where: str) -> Document:
    """A document from JSON: a text, or an object with text and perhaps title and id. where: named in an error."""
    if isinstance(record, str):
        return Document(record)
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        raise InvalidRequestError(f"{where}: a document is a text, or an object with text and perhaps title and id")
    title, name = record.get("title"), record.get("id")
    return Document(record["text"], None if title is None else str(title), None if name is None else str(name))


def chunks(text: str, words: int = CHUNK_WORDS) -> tuple[Document, ...]:
    """A long text as documents of whole paragraphs, each of about `words` words; a longer paragraph is cut."""
    found: list[str] = []
    room = 0
    for paragraph in filter(None, (part.strip() for part in re.split(r"\n\s*\n|\n(?=\S)", text))):
        for piece in _cut(paragraph, words):
            length = len(piece.split())
            if found and length <= room:
                found[-1] += f"\n{piece}"
                room -= length
            else:
                found.append(piece)
                room = words - length
    return tuple(map(Document, found))


def _cut(paragraph: str, words: int) -> Iterator[str]:
    """The paragraph, or its parts of at most `words` words."""
    found = paragraph.split(" ")
    if len(found) <= words:
        yield paragraph
        return
    for start in range(0, len(found), words):
        yield " ".join(found[start : start + words])


def _own(row: Row) -> Record:
    """Our own form: documents [{title?, text}], answers; perhaps supporting_facts [[title, …]]. No question: a
    summary is asked for, and a single document is cut into chunks."""
    question = str(row["question"])
    documents = tuple(document(entry, question or "documents") for entry in row["documents"])
    supporting = {fact[0] for fact in row.get("supporting_facts") or ()}
    needed = frozenset(at for at, found in enumerate(documents) if found.title in supporting)
    answers = tuple(map(str, row["answers"]))
    if not question.strip() and len(documents) == 1:
        documents = tuple(replace(part, title=documents[0].title) for part in chunks(documents[0].text))
    return Record(question, documents, answers, "qa" if question.strip() else "summary", needed)


def _hotpotqa(row: Row) -> Record:
    """Distractor setting; also the original JSON, which has pairs in place of records."""
    pairs = [(e[0], e[1]) if isinstance(e, list) else (e["title"], e["sentences"]) for e in _records(row["context"])]
    documents = tuple(Document("".join(sentences).strip(), title) for title, sentences in pairs)
    facts = _records(row.get("supporting_facts") or [])
    supporting = {fact[0] if isinstance(fact, list) else fact["title"] for fact in facts}
    needed = frozenset(at for at, found in enumerate(documents) if found.title in supporting)
    return Record(row["question"], documents, (row["answer"],), "qa", needed)


def _triviaqa(row: Row) -> Record:
    """rc: Wikipedia pages, then search results; both cut into chunks, for they are whole pages."""
    pages = [(page["title"], page["wiki_context"]) for page in _records(row["entity_pages"])]
    pages += [(page["title"], page["search_context"]) for page in _records(row["search_results"])]
    documents = tuple(Document(part.text, title) for title, text in pages for part in chunks(text))
    answer = row["answer"]
    return Record(row["question"], documents, (answer["value"], *answer["aliases"]), "qa")


def _musique(row: Row) -> Record | None:
    if not row.get("answerable", True):
        return None
    paragraphs = _records(row["paragraphs"])
    documents = tuple(Document(found["paragraph_text"], found["title"]) for found in paragraphs)
    needed = frozenset(at for at, found in enumerate(paragraphs) if found.get("is_supporting"))
    answers = (row["answer"], *(row.get("answer_aliases") or ()))
    return Record(row["question"], documents, answers, "qa", needed)


def _govreport(row: Row) -> Record:
    return Record("", chunks(row["report"]), (row["summary"],), "summary")


def _multinews(row: Row) -> Record:
    """Sources stand in one text with ||||| between them; one that has none is a single long text."""
    sources = [part.strip() for part in row["document"].split("|||||") if part.strip()]
    documents = tuple(map(Document, sources)) if len(sources) > 1 else chunks(row["document"])
    return Record("", documents, (row["summary"],), "summary")


def _longbench(row: Row) -> Record:
    """LongBench: one context, whose passages are numbered where it was made of several."""
    passages = [part.strip() for part in _PASSAGE.split(row["context"]) if part.strip()]
    documents = tuple(map(Document, passages)) if len(passages) > 1 else chunks(row["context"])
    question = str(row["input"])
    return Record(question, documents, tuple(row["answers"]), "qa" if question.strip() else "summary")


def _records(value: Any) -> list[Any]:
    """A list of records, also from a record of lists."""
    if isinstance(value, Mapping):
        return [dict(zip(value, entry, strict=True)) for entry in zip(*value.values(), strict=True)]
    return list(value)


SCHEMAS = (
    Schema("hypic", ("question", "documents", "answers"), _own),
    Schema("triviaqa", ("question", "answer", "entity_pages", "search_results"), _triviaqa),
    Schema("hotpotqa", ("question", "answer", "context"), _hotpotqa),
    Schema("musique", ("question", "answer", "paragraphs"), _musique),
    Schema("govreport", ("report", "summary"), _govreport),
    Schema("multinews", ("document", "summary"), _multinews),
    Schema("longbench", ("context", "input", "answers"), _longbench),
)
