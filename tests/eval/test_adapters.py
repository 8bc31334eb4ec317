"""Adapters: each published schema, as the library `datasets` hands it out, becomes a question over documents."""

from typing import Any

import pytest
from datasets import Dataset, Features, List, Sequence, Value

from hypic.errors import InvalidRequestError
from hypic.eval.adapters import Record, chunks, read_row
from hypic.segment import Document

TEXT = Value("string")


def handed_out(rows: list[dict[str, Any]], features: Features | None = None) -> list[dict[str, Any]]:
    return list(Dataset.from_list(rows, features=features))


def read(row: dict[str, Any]) -> Record:
    record = read_row(row)
    assert record is not None
    return record


HOTPOTQA: dict[str, Any] = {
    "id": "5a7a",
    "question": "Who?",
    "answer": "Ada",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": {"title": ["B"], "sent_id": [0]},
    "context": {"title": ["A", "B"], "sentences": [["One.", " Two."], ["Ada did."]]},
}


def test_hotpotqa() -> None:
    (row,) = handed_out([HOTPOTQA])
    assert read(row) == Record(
        "Who?", (Document("One. Two.", "A"), Document("Ada did.", "B")), ("Ada",), "qa", frozenset({1})
    )


def test_hotpotqa_as_lists_of_records_and_as_the_original_json() -> None:
    expected = read(HOTPOTQA)
    records = HOTPOTQA | {
        "context": [{"title": "A", "sentences": ["One.", " Two."]}, {"title": "B", "sentences": ["Ada did."]}],
        "supporting_facts": [{"title": "B", "sent_id": 0}],
    }
    pairs = HOTPOTQA | {"context": [["A", ["One.", " Two."]], ["B", ["Ada did."]]], "supporting_facts": [["B", 0]]}
    assert read(handed_out([records])[0]) == read(pairs) == expected


@pytest.mark.parametrize("kind", [Sequence, List])
def test_triviaqa(kind: Any) -> None:
    page = {"doc_source": TEXT, "filename": TEXT, "title": TEXT, "wiki_context": TEXT}
    result = {"description": TEXT, "filename": TEXT, "rank": Value("int32"), "title": TEXT, "url": TEXT}
    features = Features(
        {
            "question": TEXT,
            "question_id": TEXT,
            "question_source": TEXT,
            "entity_pages": kind(page),
            "search_results": kind(result | {"search_context": TEXT}),
            "answer": {"aliases": List(TEXT), "normalized_aliases": List(TEXT), "value": TEXT},
        }
    )
    found = {"description": "d", "filename": "f", "rank": 0, "title": "R", "url": "u", "search_context": "result text"}

    def held(records: list[dict[str, Any]], columns: dict[str, Any]) -> Any:
        return records if kind is List else {name: [record[name] for record in records] for name in columns}

    rows = [
        {
            "question": "Which?",
            "question_id": "q",
            "question_source": "s",
            "entity_pages": held(
                [{"doc_source": "w", "filename": "f", "title": "P", "wiki_context": "word " * 500}], page
            ),
            "search_results": held([found], found),
            "answer": {"aliases": ["K2", "Chogori"], "normalized_aliases": ["k2", "chogori"], "value": "K2 mountain"},
        },
        {
            "question": "Nothing retrieved?",
            "question_id": "q",
            "question_source": "s",
            "entity_pages": held([], page),
            "search_results": held([], found),
            "answer": {"aliases": [], "normalized_aliases": [], "value": "x"},
        },
    ]
    first, second = handed_out(rows, features)
    record = read(first)
    assert record.answers == ("K2 mountain", "K2", "Chogori")
    assert [(document.title, len(document.text.split())) for document in record.documents] == [
        ("P", 400),
        ("P", 100),
        ("R", 2),
    ]
    assert read_row(second) is None, "without documents there is nothing to reuse"


def test_musique() -> None:
    paragraphs = [
        {"idx": 0, "title": "A", "paragraph_text": "no", "is_supporting": False},
        {"idx": 1, "title": "B", "paragraph_text": "yes", "is_supporting": True},
    ]
    row = {"id": "2hop", "paragraphs": paragraphs, "question": "Where?", "answer": "Rome", "answer_aliases": ["Roma"]}
    asked, unanswerable = handed_out([row | {"answerable": True}, row | {"answerable": False}])
    assert read(asked) == Record(
        "Where?", (Document("no", "A"), Document("yes", "B")), ("Rome", "Roma"), "qa", frozenset({1})
    )
    assert read_row(unanswerable) is None


def test_govreport_is_cut_into_whole_paragraphs() -> None:
    paragraphs = [f"{name} " + "w " * 150 for name in "abcdef"]
    (row,) = handed_out([{"report": "\n\n".join(paragraphs), "summary": "short"}])
    record = read(row)
    assert record.task == "summary"
    assert record.answers == ("short",)
    assert [document.text[0] for document in record.documents] == ["a", "c", "e"]
    assert sum(len(document.text.split()) for document in record.documents) == 6 * 151, "nothing is lost"


def test_multinews_has_a_document_for_each_source() -> None:
    (row,) = handed_out([{"document": "First source. ||||| Second one. |||||", "summary": "both"}])
    assert read(row) == Record("", (Document("First source."), Document("Second one.")), ("both",), "summary")


def test_longbench_rows() -> None:
    passages = "Passage 1:\nAlpha\nbeta\n\nPassage 2:\nGamma"
    row = {"input": "Which?", "context": passages, "answers": ["Gamma", "G"], "length": 9, "dataset": "hotpotqa"}
    question, summary = handed_out([row, row | {"input": "", "context": "One long report."}])
    assert read(question) == Record("Which?", (Document("Alpha\nbeta"), Document("Gamma")), ("Gamma", "G"), "qa")
    assert read(summary).task == "summary"
    assert read(summary).documents == (Document("One long report."),)


def test_own_rows_without_a_question_ask_for_a_summary() -> None:
    own = {"question": "", "documents": [{"title": "", "text": "t"}], "answers": ["s"]}
    assert read(handed_out([own])[0]).task == "summary"
    long = own | {"documents": [{"title": "R", "text": "w " * 900}]}
    assert [(found.title, len(found.text.split())) for found in read(long).documents] == [
        ("R", 400),
        ("R", 400),
        ("R", 100),
    ]
    facts = own | {"question": "q", "documents": [{"title": "T", "text": "t"}], "supporting_facts": [["T", 0]]}
    assert read(facts).needed == frozenset({0})


def test_unknown_and_broken_rows_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"columns prompt, chosen\. Known are hypic: question"):
        read_row({"prompt": 1, "chosen": 2})
    with pytest.raises(InvalidRequestError, match="columns of hotpotqa does not hold"):
        read_row({"question": "q", "answer": "a", "context": [{"title": "no sentences"}]})


def test_chunks_keep_every_word_and_their_length() -> None:
    text = "\n\n".join(" ".join(f"w{n}.{m}" for m in range(n)) for n in (3, 10, 950, 20, 390))
    found = chunks(text, 100)
    assert " ".join(document.text for document in found).split() == text.split()
    assert max(len(document.text.split()) for document in found) <= 100
    assert chunks("  \n\n ") == ()
