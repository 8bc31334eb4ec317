"""Chats, documents and marked text to segments. Boundaries come from structure, never from searching user text."""

import secrets
from collections.abc import Sequence

import numpy as np

from hypic.errors import InvalidRequestError
from hypic.segment import Document, Message, Segment
from hypic.tokenizer import PromptTokenizer, TextPart

SEPARATOR = "<<PIC_SEP>>"
"""The published mark between segments of a raw prompt. It never becomes tokens; inside `documents` it is plain text."""


def chat_segments(
    tokenizer: PromptTokenizer, messages: Sequence[Message], documents: Sequence[Document] = ()
) -> tuple[Segment, ...]:
    """Segments of a chat: what precedes the documents, each document, and the question with the template's end.

    Documents stand in the last user message, before its text; so do its parts but the last. Raises
    InvalidRequestError where the template cannot render the messages or there is no user message to answer.
    """
    if not messages:
        raise InvalidRequestError("messages is empty: send at least one user message")
    target = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if target is None:
        raise InvalidRequestError("messages holds no user message to answer")
    before, after = _render(tokenizer, messages, target)
    *context, question = messages[target].parts
    segments = [Segment("leading", tokenizer.encode(before), "template and history")]
    for number, document in enumerate(documents):
        label = document.id or document.title or f"document {number + 1}"
        segments.append(Segment("document", tokenizer.encode([TextPart(document.section)]), label))
    for number, part in enumerate(context):
        segments.append(Segment("document", tokenizer.encode([TextPart(part)]), f"part {number + 1}"))
    ending = tokenizer.encode([TextPart(question), *after])
    return (*(s for s in segments if len(s)), Segment("question", ending, "question"))


def marked_segments(tokenizer: PromptTokenizer, text: str) -> tuple[Segment, ...]:
    """Segments of a raw prompt with `<<PIC_SEP>>` between them.

    The first and last sections are the client's own template and may hold special tokens; those between are
    documents and may not. BOS is put in front once, where the tokenizer has one.
    """
    sections = text.split(SEPARATOR)
    bos = np.asarray(tokenizer.bos_ids, dtype=np.int32)
    ids = [
        tokenizer.encode([TextPart(section, template=number in (0, len(sections) - 1))])
        for number, section in enumerate(sections)
    ]
    if len(bos) and list(ids[0][: len(bos)]) != tokenizer.bos_ids:
        ids[0] = np.concatenate([bos, ids[0]])
    if len(ids[-1]) == 0:
        raise InvalidRequestError(f"nothing follows the last {SEPARATOR}: end the prompt with a question")
    segments = [Segment("leading", ids[0], "prompt")] if len(ids) > 1 and len(ids[0]) else []
    segments += [Segment("document", part, f"segment {n}") for n, part in enumerate(ids[1:-1], 1) if len(part)]
    return (*segments, Segment("question", ids[-1], "question"))


def section_segments(
    tokenizer: PromptTokenizer, sections: Sequence[str], question: str, system: str | None = None
) -> tuple[Segment, ...]:
    """Segments of explicit sections and a question, laid out as in a chat: for evaluation and warm-up."""
    messages = [Message("system", system)] if system else []
    return chat_segments(tokenizer, [*messages, Message("user", (*sections, question))])


def _render(
    tokenizer: PromptTokenizer, messages: Sequence[Message], target: int
) -> tuple[list[TextPart], list[TextPart]]:
    """The template around the message `target`: parts before its content, and parts after it.

    Contents are rendered as random marks and put back afterwards, so nothing in them can be taken for template.
    """
    marks = [f"hypic{secrets.token_hex(16)}" for _ in messages]
    turns = [{"role": message.role, "content": mark} for message, mark in zip(messages, marks, strict=True)]
    try:
        text: str = tokenizer.hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates raise whatever their authors wrote
        raise InvalidRequestError(f"the model's chat template cannot render these messages: {error}") from error
    parts: list[TextPart] = []
    before: list[TextPart] = []
    for number, (message, mark) in enumerate(zip(messages, marks, strict=True)):
        head, found, text = text.partition(mark)
        if not found:
            raise InvalidRequestError(
                f"the model's chat template dropped or reordered the content of message {number} ({message.role})"
            )
        parts.append(TextPart(head, template=True))
        if number == target:
            before, parts = parts, []
        else:
            parts.append(TextPart("".join(message.parts)))
    return before, [*parts, TextPart(text, template=True)]
