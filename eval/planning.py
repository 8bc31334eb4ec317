"""`hypic plan`: what would be reused of a prompt, and why not the rest."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypic.arms import arm_named
from hypic.config import EngineConfig
from hypic.errors import InvalidRequestError
from hypic.eval.adapters import document
from hypic.eval.report import Report, Table
from hypic.plan import Plan
from hypic.prompt import chat_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.segment import Document, Message

_LABEL_LENGTH = 28


@dataclass(frozen=True)
class ChatPrompt:
    """Messages of a chat, and the documents that stand before the last user message's text."""

    messages: tuple[Message, ...]
    documents: tuple[Document, ...]


def chat_prompt(question: str, system: str, documents: Sequence[Document]) -> ChatPrompt:
    """A chat of one question. Raises InvalidRequestError where the question is empty."""
    if not question.strip():
        raise InvalidRequestError("there is nothing to plan: give a request file, or --question TEXT")
    head = (Message("system", system),) if system else ()
    return ChatPrompt((*head, Message("user", question)), tuple(documents))


def read_prompt(path: Path) -> ChatPrompt:
    """The prompt of a chat completion request's body. Raises InvalidRequestError where it is not one."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read as JSON: {error}") from error
    messages = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(messages, list):
        raise InvalidRequestError(f'{path} must hold {{"messages": [...], "documents": [...]}}')
    documents = body.get("documents") or []
    if not isinstance(documents, list):
        raise InvalidRequestError(f"{path}: documents must be a list")
    return ChatPrompt(
        tuple(_message(record, f"{path}, message {number}") for number, record in enumerate(messages)),
        tuple(document(record, f"{path}, document {number}") for number, record in enumerate(documents)),
    )


def run_plan(config: EngineConfig, prompt: ChatPrompt, arm: str, warm: Sequence[Document] = ()) -> Report:
    """Plan a prompt on a fresh engine in which the system text and `warm` documents have been built.

    Raises InvalidRequestError or PromptTooLongError for a prompt that the model would refuse.
    """
    from hypic.engine.engine import Engine

    chosen = arm_named(arm)
    engine = Engine(config)
    if warm:
        segments = chat_segments(engine.tokenizer, prompt.messages, warm)[:-1]
        for entry in engine.build(engine.warm(list(segments), arm)):
            engine.deliver(entry)
    segments = chat_segments(engine.tokenizer, prompt.messages, prompt.documents)
    found = engine.plan(GenerationRequest("plan", segments, chosen, SamplingParams(max_tokens=1)))
    return Report("plan", str(config.model), config.device, found.as_dict(), (plan_table(found),))


def plan_table(plan: Plan) -> Table:
    """A row per segment: where it comes from, and why it is not simply reused."""
    rows = tuple(
        (
            str(row.index),
            row.label if len(row.label) <= _LABEL_LENGTH else f"{row.label[: _LABEL_LENGTH - 1]}…",
            row.source,
            row.reason,
            str(row.position),
            str(row.tokens),
            str(row.seam_tokens),
            str(row.computed_tokens),
        )
        for row in plan.rows
    )
    columns = ("#", "segment", "from", "why", "at", "tokens", "seam", "computed")
    note = (
        f"{plan.prompt_tokens} prompt tokens: {plan.cached_tokens} from caches, {plan.computed_tokens} computed, "
        f"{plan.built_tokens} in cold segments to prefill"
    )
    return Table(f"Plan of arm {plan.arm}", columns, rows, note, text_columns=4)


def _message(record: Any, where: str) -> Message:
    content = record.get("content") if isinstance(record, dict) else None
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
    else:
        parts = [content]
    if not parts or not all(isinstance(part, str) for part in parts) or not isinstance(record.get("role"), str):
        raise InvalidRequestError(f"{where}: a message has a role, and a text or text parts as content")
    texts = tuple(str(part) for part in parts)
    return Message(record["role"], texts if isinstance(content, list) else texts[0])
