"""Text to tokens and back. What users write is plain text: only the chat template may produce special tokens."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from hypic.errors import CheckpointError
from hypic.segment import TokenIds

PIECE_CHARS = 65_536
"""Longer text is encoded in pieces of about so many characters, since encoding takes some 220 bytes a token. It is
cut before a word where there is one, so that hardly any text has other tokens for it, and always in the same places."""

_WORD_START = re.compile(r"(?<=\w) (?=\w)")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class TextPart:
    """A piece of a section: `template` text may hold special tokens, the rest is a user's and never does."""

    text: str
    template: bool = False


class PromptTokenizer:
    """A Hugging Face fast tokenizer, with a twin that knows no special tokens for what users write."""

    def __init__(self, tokenizer: Any, eos_ids: frozenset[int]) -> None:
        self.hf = tokenizer
        self.eos_ids = eos_ids
        self._special: Tokenizer = tokenizer.backend_tokenizer
        record = json.loads(self._special.to_str())
        self._added = {token["content"]: token["id"] for token in record.get("added_tokens") or []}
        self._bytes = _byte_alphabet() if '"ByteLevel"' in json.dumps(record.get("decoder")) else None
        record["added_tokens"], record["post_processor"] = [], None
        self._plain = Tokenizer.from_str(json.dumps(record))
        template = str(getattr(tokenizer, "chat_template", None) or "")
        digest = hashlib.blake2b(self._special.to_str().encode(), digest_size=32)
        digest.update(template.encode())
        self.fingerprint = digest.hexdigest()

    @classmethod
    def load(cls, path: Path) -> "PromptTokenizer":
        """The tokenizer of a checkpoint directory. Raises CheckpointError where there is no fast one."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} holds no tokenizer that can be read: {error}") from error
        if not getattr(tokenizer, "is_fast", False):
            raise CheckpointError(f"{path} has no tokenizer.json; convert its tokenizer to a fast one first")
        return cls(tokenizer, _eos_ids(path, tokenizer))

    def encode(self, parts: list[TextPart]) -> TokenIds:
        """Token ids of one section. Parts are encoded together where nothing a user wrote looks special."""
        return np.asarray(list(chain.from_iterable(self.encode_pieces(parts))), dtype=np.int32)

    def encode_pieces(self, parts: list[TextPart]) -> Iterator[list[int]]:
        """As `encode`, a piece of a long text at a time, for callers that may have enough before its end."""
        user_text = "\n".join(part.text for part in parts if not part.template)
        template_chars = sum(len(part.text) for part in parts if part.template)
        if (
            any(part.template for part in parts)
            and max(len(user_text), template_chars) <= PIECE_CHARS
            and not self._looks_special(user_text)
        ):
            yield _ids(self._special, "".join(part.text for part in parts))
            return
        for part in parts:
            for piece in _pieces(part.text, tuple(self._added) if part.template else ()):
                yield self._encode_part(TextPart(piece, part.template))

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for in UTF-8; it may be part of a character. Empty for an id without a token."""
        spelled = self._special.id_to_token(token_id)
        if spelled is None:
            return b""
        if spelled not in self._added:
            if self._bytes is not None and all(char in self._bytes for char in spelled):
                return bytes(self._bytes[char] for char in spelled)
            if found := _BYTE_TOKEN.fullmatch(spelled):
                return bytes.fromhex(found[1])
            spelled = spelled.replace("\u2581", " ")
        return spelled.encode()

    def decode(self, token_ids: list[int]) -> str:
        """Text of tokens, special ones left out."""
        return self._special.decode(token_ids, skip_special_tokens=True)

    def stream(self) -> "Detokenizer":
        """A decoder for one growing text."""
        return Detokenizer(self._special)

    @property
    def bos_ids(self) -> list[int]:
        """What the tokenizer puts in front of a raw prompt, once: a BOS token or nothing."""
        ids: list[int] = self.hf("", add_special_tokens=True)["input_ids"]
        return [token for token in ids if token not in self.eos_ids]

    def _looks_special(self, text: str) -> bool:
        return any(token in text for token in self._added)

    def _encode_part(self, part: TextPart) -> list[int]:
        if part.template:
            return _ids(self._special, part.text)
        ids = _ids(self._plain, part.text)
        if set(ids) & set(self._added.values()):  # a vocabulary that spells a special token by merging
            ids = [token for char in part.text for token in _ids(self._plain, char)]
        return ids


class Detokenizer:
    """Tokens in, text out as soon as it is final (a character may take several tokens)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """The text that this token completes, "" while a character is unfinished."""
        return self._stream.step(self._tokenizer, token_id) or ""


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """As a batch of one: unlike `encode` that lets other threads run, and leaves out offsets that nobody asks for."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _pieces(text: str, whole: tuple[str, ...]) -> Iterator[str]:
    """A text in pieces of at most PIECE_CHARS, cut in front of the last space between two words where there is one, and
    within none of the strings `whole`."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        end = start + PIECE_CHARS
        words = [found.start() for found in _WORD_START.finditer(text, end - 1024, end)]
        end = words[-1] if words else end
        cut = [text.find(token, max(start, end - len(token) + 1), end + len(token) - 1) for token in whole]
        end = min([begin for begin in cut if begin > start], default=end)
        yield text[start:end]
        start = end
    yield text[start:]


def _byte_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary spells: printable ones themselves, the rest in order from
    U+0100 (as GPT-2's vocabulary began it)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _eos_ids(path: Path, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a text: the tokenizer's, and those of the generation or model config."""
    found = {tokenizer.eos_token_id} - {None}
    for name in ("generation_config.json", "config.json"):
        if (path / name).is_file():
            record = json.loads((path / name).read_text())
            ids = record.get("eos_token_id", record.get("text_config", {}).get("eos_token_id"))
            found |= set(ids) if isinstance(ids, list) else {ids} - {None}
    return frozenset(found)
