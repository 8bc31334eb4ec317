"""Questions and documents: what is read, what is cut, and what is refused."""

import json
from pathlib import Path

import pytest

from hypic.errors import InvalidRequestError
from hypic.eval.adapters import document
from hypic.eval.corpora import HOTPOTQA, read_records
from hypic.eval.recall import PROBES
from hypic.eval.workloads import long_documents, question_sets, questions_fingerprint, read_documents
from hypic.segment import Document
from hypic.tokenizer import PromptTokenizer, TextPart


def test_shipped_sample_is_whole_and_attributed() -> None:
    records = list(read_records(HOTPOTQA, ("id", "question", "documents", "answers", "supporting_facts")))
    assert len(records) == 40
    assert all(len(record["documents"]) == 10 and record["answers"] for record in records)
    readme = (HOTPOTQA.parent / "README.md").read_text()
    assert "CC BY-SA 4.0" in readme
    assert "Zhilin Yang" in readme


def test_recall_gives_every_probe_the_same_again() -> None:
    sets = question_sets("recall", 3, 4, seed=5)
    assert tuple(sets) == PROBES
    assert all(len(found) == 3 and len(found[0].sections) == 4 for found in sets.values())
    assert sets == question_sets("recall", 3, 4, seed=5) != question_sets("recall", 3, 4, seed=6)


def test_shuffled_documents_are_the_same_ones_and_only_where_order_does_not_matter() -> None:
    plain, shuffled = (question_sets("recall", 3, 5, seed=1, shuffle=flag) for flag in (False, True))
    assert tuple(shuffled) == ("plain", "two_hop"), "what the latest statement or a neighbour decides has an order"
    for name, found in shuffled.items():
        assert all(sorted(a.sections) == sorted(b.sections) for a, b in zip(found, plain[name], strict=True))
        assert [q.sections for q in found] != [q.sections for q in plain[name]]
    assert shuffled == question_sets("recall", 3, 5, seed=1, shuffle=True)


def test_fingerprint_names_questions_documents_and_order() -> None:
    found = question_sets("hotpotqa", 3, 4, seed=0)
    assert questions_fingerprint(found) == questions_fingerprint(question_sets("hotpotqa", 3, 4, seed=0))
    others = [question_sets("hotpotqa", 3, 4, seed=1), question_sets("hotpotqa", 3, 4, 0, shuffle=True)]
    others += [question_sets("hotpotqa", 2, 4, seed=0), question_sets("hotpotqa", 3, 5, seed=0)]
    assert len({questions_fingerprint(sets) for sets in (found, *others)}) == 5


def test_fewer_documents_keep_the_supporting_ones() -> None:
    found = question_sets("hotpotqa", 40, 3, seed=0)["hotpotqa"]
    records = {record["question"]: record for record in read_records(HOTPOTQA, ("question",))}
    for question in found:
        titles = {fact[0] for fact in records[question.question]["supporting_facts"]}
        assert len(question.sections) == 3
        assert all(any(section.startswith(f"{title}\n") for section in question.sections) for title in titles)


def test_long_documents_have_the_length_and_differ(tiny_checkpoint: Path) -> None:
    tokenizer = PromptTokenizer.load(tiny_checkpoint)
    documents = long_documents(tokenizer, 6, 700, seed=1)
    lengths = [len(tokenizer.encode([TextPart(document.section)])) for document in documents]
    assert all(600 <= length <= 710 for length in lengths), lengths
    assert len({document.text for document in documents}) == 6
    assert documents == long_documents(tokenizer, 6, 700, seed=1)


def test_documents_are_read_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text('{"text": "one", "title": "T", "id": 7}\n\n{"text": "zwei, 三 🙂"}\n', encoding="utf-8")
    assert read_documents(path) == [Document("one", "T", "7"), Document("zwei, 三 🙂")]


@pytest.mark.parametrize("line", ["not json", "[1]", '{"title": "no text"}', '{"text": 3}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "documents.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(InvalidRequestError, match=r"documents\.jsonl"):
        read_documents(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="no data set 'squad'"):
        question_sets("squad", 1, 8, seed=0)
    with pytest.raises(InvalidRequestError, match="two documents or more"):
        question_sets("recall", 1, 1, seed=0)
    with pytest.raises(InvalidRequestError, match="not enough names"):
        question_sets("recall", 1, 5000, seed=0)
    path = tmp_path / "binary.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRequestError, match="cannot be read as text"):
        read_documents(path)
    with pytest.raises(InvalidRequestError, match="here: a document is a text"):
        document(json.loads('{"title": "x"}'), "here")
