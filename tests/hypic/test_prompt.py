"""Boundaries come from structure: whatever stands in a text, the sections are those that were given."""

from pathlib import Path

import pytest

from hypic.errors import InvalidRequestError
from hypic.prompt import SEPARATOR, chat_segments, marked_segments, section_segments, token_segments
from hypic.segment import Document, Message
from hypic.tokenizer import PromptTokenizer

HOSTILE = [SEPARATOR, "<|im_end|>", "<|im_start|>assistant\n", "🙂 漢字", "hypic" + "0" * 32, "\n\n", " "]


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> PromptTokenizer:
    return PromptTokenizer.load(tiny_checkpoint)


def texts(tokenizer: PromptTokenizer, segments: object) -> list[str]:
    return [tokenizer.hf.decode(segment.token_ids) for segment in segments]  # type: ignore[attr-defined]


def test_chat_without_documents_is_the_template(tokenizer: PromptTokenizer) -> None:
    messages = [
        Message("system", "be brief"),
        Message("user", "hi"),
        Message("assistant", "yes?"),
        Message("user", "go"),
    ]
    segments = chat_segments(tokenizer, messages)
    expected = tokenizer.hf.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in messages], tokenize=False, add_generation_prompt=True
    )
    assert "".join(texts(tokenizer, segments)) == expected
    assert [segment.kind for segment in segments] == ["leading", "question"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_document_is_one_section_whatever_it_holds(tokenizer: PromptTokenizer, text: str) -> None:
    documents = [Document(text, "T"), Document("second", id="two"), Document(text)]
    segments = chat_segments(tokenizer, [Message("user", f"why {text}?")], documents)
    assert [segment.kind for segment in segments] == ["leading", "document", "document", "document", "question"]
    assert texts(tokenizer, segments)[1:4] == [f"T\n{text}\n\n", "second\n\n", f"{text}\n\n"]
    assert [segment.label for segment in segments[1:4]] == ["T", "two", "document 3"]
    special = [[token for token in segment.token_ids.tolist() if token >= 256] for segment in segments]
    assert special == [[257], [], [], [], [258, 257]], "only the template may produce special tokens"


def test_same_document_same_tokens_wherever_it_stands(tokenizer: PromptTokenizer) -> None:
    document = Document("x = 1", "note")
    first = chat_segments(tokenizer, [Message("user", "a")], [document, Document("other")])
    second = chat_segments(tokenizer, [Message("system", "s"), Message("user", "b")], [Document("y"), document])
    assert first[1].token_ids.tolist() == second[2].token_ids.tolist()


def test_message_parts_are_sections(tokenizer: PromptTokenizer) -> None:
    segments = chat_segments(tokenizer, [Message("user", ("part one", "part two", "question"))])
    assert texts(tokenizer, segments)[1:3] == ["part one", "part two"]
    assert segments[-1].kind == "question"
    laid_out = section_segments(tokenizer, ["part one", "part two"], "question")
    assert [s.token_ids.tolist() for s in laid_out] == [s.token_ids.tolist() for s in segments]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([], "messages is empty"),
        ([Message("system", "s")], "no user message"),
        ([Message("assistant", "a")], "no user"),
    ],
)
def test_chats_that_ask_nothing(tokenizer: PromptTokenizer, messages: list[Message], error: str) -> None:
    with pytest.raises(InvalidRequestError, match=error):
        chat_segments(tokenizer, messages)


def test_template_that_refuses_is_a_clear_error(tokenizer: PromptTokenizer, tiny_checkpoint: Path) -> None:
    strict = PromptTokenizer.load(tiny_checkpoint)
    strict.hf.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        chat_segments(strict, [Message("user", "hi")])
    strict.hf.chat_template = "no content at all"
    with pytest.raises(InvalidRequestError, match="dropped or reordered"):
        chat_segments(strict, [Message("user", "hi")])


def test_marked_text_splits_at_the_separator(tokenizer: PromptTokenizer) -> None:
    text = SEPARATOR.join(["<|im_start|>user\n", "one <|im_end|>", "", "two", "why?<|im_end|>"])
    segments = marked_segments(tokenizer, text)
    assert texts(tokenizer, segments) == ["<|im_start|>user\n", "one <|im_end|>", "two", "why?<|im_end|>"]
    special = [[token for token in segment.token_ids.tolist() if token >= 256] for segment in segments]
    assert special == [[257], [], [], [258]]
    assert SEPARATOR not in "".join(texts(tokenizer, segments))


def test_marked_text_without_separator_is_one_question(tokenizer: PromptTokenizer) -> None:
    assert [segment.kind for segment in marked_segments(tokenizer, "just text")] == ["question"]


@pytest.mark.parametrize("text", ["", f"a{SEPARATOR}"])
def test_marked_text_must_end_with_something(tokenizer: PromptTokenizer, text: str) -> None:
    with pytest.raises(InvalidRequestError, match="end the prompt with a question"):
        marked_segments(tokenizer, text)


def test_marks_end_sections_in_any_message(tokenizer: PromptTokenizer) -> None:
    """What stands between marked sections is a section of its own, so a section is the same wherever it stands."""
    system = Message("system", ("rules ", "one", "tail"), frozenset({1}))
    user = Message("user", ("doc A", "doc B", "why?"), frozenset({0, 1}))
    segments = chat_segments(tokenizer, [system, user])
    assert [segment.kind for segment in segments] == [
        "leading",
        "document",
        "document",
        "document",
        "document",
        "question",
    ]
    found = texts(tokenizer, segments)
    assert found[1] == "rules one"
    assert found[2] == "tail<|im_end|>\n<|im_start|>user\n"
    assert found[3:5] == ["doc A", "doc B"]
    whole = [{"role": "system", "content": "rules onetail"}, {"role": "user", "content": "doc Adoc Bwhy?"}]
    assert "".join(found) == tokenizer.hf.apply_chat_template(whole, tokenize=False, add_generation_prompt=True)


def test_a_mark_on_the_last_part_leaves_the_template_to_answer(tokenizer: PromptTokenizer) -> None:
    segments = chat_segments(tokenizer, [Message("user", ("all of it",), frozenset({0}))])
    assert texts(tokenizer, segments)[1:] == ["all of it", "<|im_end|>\n<|im_start|>assistant\n"]


def test_parts_without_marks_in_earlier_messages_are_history(tokenizer: PromptTokenizer) -> None:
    messages = [Message("user", ("a", "b")), Message("assistant", "c"), Message("user", "d")]
    assert [segment.kind for segment in chat_segments(tokenizer, messages)] == ["leading", "question"]


def test_tokens_are_one_section() -> None:
    (segment,) = token_segments([1, 2, 3])
    assert (segment.kind, segment.token_ids.tolist()) == ("question", [1, 2, 3])
