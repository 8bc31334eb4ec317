"""Chats, documents and marked text to segments. Boundaries come from structure, never from searching user text."""

import secrets
from collections.abc import Callable, Sequence

import numpy as np

from hypic.errors import InvalidRequestError
from hypic.segment import Document, Message, Segment, TokenIds
from hypic.tokenizer import PromptTokenizer, TextPart

SEPARATOR = "<<PIC_SEP>>"
"""The published mark between segments of a raw prompt. It never becomes tokens; inside `documents` it is plain text."""


Encode = Callable[[list[TextPart]], TokenIds]
"""Token ids of one section: `PromptTokenizer.encode`, or something that refuses what is too long on the way."""


def chat_segments(
    tokenizer: PromptTokenizer,
    messages: Sequence[Message],
    documents: Sequence[Document] = (),
    encode: Encode | None = None,
) -> tuple[Segment, ...]:
    """Segments of a chat: what precedes the documents, each document, and the question with the template's end.

    Documents stand in the last user message, before its text; so do its parts but the last, unless the client marked
    where sections end (`Message.ends`), which it may in any message. Raises InvalidRequestError where the template
    cannot render the messages or there is no user message to answer.
    """
    if not messages:
        raise InvalidRequestError("messages is empty: send at least one user message")
    target = max((i for i, message in enumerate(messages) if message.role == "user"), default=None)
    if target is None:
        raise InvalidRequestError("messages holds no user message to answer")
    *heads, tail = _render(tokenizer, messages)
    chat = _Chat(encode or tokenizer.encode)
    for number, (head, message) in enumerate(zip(heads, messages, strict=True)):
        chat.between.append(TextPart(head, template=True))
        if number == target:
            chat.close("template and history")
            for count, document in enumerate(documents):
                label = document.id or document.title or f"document {count + 1}"
                chat.add(document.section, label)
        for text, reusable in message.runs(last=number == target):
            if reusable:
                chat.close("template and history")
                chat.add(text, f"part {chat.parts + 1}")
                chat.parts += 1
            else:
                chat.between.append(TextPart(text))
    return chat.ended(TextPart(tail, template=True))


class _Chat:
    """Segments so far, and what stands behind the last of them that is not reusable by itself."""

    def __init__(self, encode: Encode) -> None:
        self.segments: list[Segment] = []
        self.between: list[TextPart] = []
        self.parts = 0
        self._encode = encode

    def add(self, text: str, label: str) -> None:
        """A section that is reusable by itself."""
        ids = self._encode([TextPart(text)])
        if len(ids):
            self.segments.append(Segment("document", ids, label))

    def close(self, label: str) -> None:
        """A section of what stands between."""
        parts, self.between = [part for part in self.between if part.text], []
        ids = self._encode(parts) if parts else ()
        if len(ids):
            self.segments.append(Segment("document" if self.segments else "leading", np.asarray(ids), label))

    def ended(self, tail: TextPart) -> tuple[Segment, ...]:
        return (*self.segments, Segment("question", self._encode([*self.between, tail]), "question"))


def marked_segments(tokenizer: PromptTokenizer, text: str, encode: Encode | None = None) -> tuple[Segment, ...]:
    """Segments of a raw prompt with `<<PIC_SEP>>` between them.

    The first and last sections are the client's own template and may hold special tokens; those between are
    documents and may not. BOS is put in front once, where the tokenizer has one.
    """
    sections = text.split(SEPARATOR)
    bos = np.asarray(tokenizer.bos_ids, dtype=np.int32)
    encode = encode or tokenizer.encode
    ids = [
        encode([TextPart(section, template=number in (0, len(sections) - 1))])
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


def token_segments(token_ids: Sequence[int]) -> tuple[Segment, ...]:
    """A raw prompt that is tokens already: one section, since nothing says where others would begin."""
    return (Segment("question", np.asarray(token_ids, dtype=np.int32), "prompt"),)


def _render(tokenizer: PromptTokenizer, messages: Sequence[Message]) -> list[str]:
    """The template around the messages' contents: what stands before each, and behind the last.

    Contents are rendered as random marks and put back afterwards, so nothing in them can be taken for template.
    """
    marks = [f"hypic{secrets.token_hex(16)}" for _ in messages]
    turns = [{"role": message.role, "content": mark} for message, mark in zip(messages, marks, strict=True)]
    try:
        text: str = tokenizer.hf.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates raise whatever their authors wrote
        raise InvalidRequestError(f"the model's chat template cannot render these messages: {error}") from error
    parts: list[str] = []
    for number, (message, mark) in enumerate(zip(messages, marks, strict=True)):
        head, found, text = text.partition(mark)
        if not found:
            raise InvalidRequestError(
                f"the model's chat template dropped or reordered the content of message {number} ({message.role})"
            )
        parts.append(head)
    return [*parts, text]
