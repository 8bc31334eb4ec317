"""Texts for the ids of a trace: English paragraphs, the same for the same id, as long as the trace says."""

import hashlib
import json
import random
from functools import cached_property

from hypic.eval.adapters import document
from hypic.eval.corpora import HOTPOTQA, read_records
from hypic.eval.replay import Asked, Part
from hypic.tokenizer import PromptTokenizer


class Filling:
    """Bodies of chat completions for requests of a trace, for one tokenizer."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[str, str] = {}

    def text(self, part: Part) -> str:
        """The part's text: its name, so that no two are alike, and paragraphs drawn by it, cut behind its last token.
        A part of fewer tokens than its name is its name."""
        if part.name not in self._texts:
            rng = random.Random(hashlib.blake2b(part.name.encode(), digest_size=8).digest())
            text, tokens = f"{part.name}.", 0
            while tokens < part.tokens:
                text += " " + rng.choice(self._paragraphs)
                encoding = self._tokenizer.hf(text, add_special_tokens=False, return_offsets_mapping=True)
                tokens = len(encoding["input_ids"])
            end = encoding["offset_mapping"][part.tokens - 1][1] if part.tokens else 0
            self._texts[part.name] = text[: max(end, len(part.name) + 1)]
        return self._texts[part.name]

    def body(self, asked: Asked, arm: str, salt: str) -> bytes:
        """JSON of a streamed request that is answered greedily and in full length."""
        content = [{"type": "text", "text": self.text(part)} for part in (*asked.context, asked.question)]
        record = {
            "messages": [
                {"role": "system", "content": self.text(asked.system)},
                {"role": "user", "content": content},
            ],
            "documents": [{"id": part.name, "text": self.text(part)} for part in asked.documents],
            "max_tokens": asked.output_tokens,
            "temperature": 0,
            "min_tokens": asked.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": salt,
            "hypic": {"arm": arm},
        }
        return json.dumps(record).encode()

    @cached_property
    def _paragraphs(self) -> list[str]:
        records = read_records(HOTPOTQA, ("documents",))
        return [document(entry, "hotpotqa").text for record in records for entry in record["documents"]]
