"""`hypic warm`: documents of files to a running server, so that the first question over them finds them cached."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from hypic.errors import HypicError, InvalidRequestError
from hypic.eval.report import SERVER, Advance, Report, Table, progress
from hypic.eval.workloads import read_documents
from hypic.segment import Document

BATCH_DOCUMENTS = 64
BATCH_BYTES = 4 * 1024**2
"""Of one request: well within what a server takes, and enough to keep its workers busy."""

TRIES = 5
"""Of a request that the server has no room for yet."""

ANSWER_SECONDS = 600.0
"""How long the server may be silent: the longest document is prefilled in it."""

TEXT_SUFFIXES = (".txt", ".md", ".jsonl")
"""What is taken of a directory."""

STATUSES = ("built", "reused", "too_short", "failed")


@dataclass(frozen=True)
class WarmServer:
    """Where documents go. api_key: "" sends none. salt: the `cache_salt` of the requests that will use them."""

    url: str
    api_key: str = ""
    salt: str = ""

    def body(self, documents: Sequence[Document]) -> dict[str, Any]:
        """The request that warms documents."""
        sent = [{"text": d.text, "title": d.title, "id": d.id} for d in documents]
        return {"documents": sent, "stream": True} | ({"cache_salt": self.salt} if self.salt else {})


Rows = dict[int, dict[str, Any]]
"""What became of each document, by its number."""


def find_documents(sources: Sequence[Path]) -> list[Document]:
    """Documents of files and directories, in the order given and by name within a directory. A .jsonl file has one a
    line, {id?, title?, text}; any other file is one document, named by its path. Raises InvalidRequestError where there
    are none, or a file cannot be read."""
    found: list[Document] = []
    for source in sources:
        if source.is_dir():
            paths = sorted(path for path in source.rglob("*") if path.is_file() and path.suffix in TEXT_SUFFIXES)
        elif source.is_file():
            paths = [source]
        else:
            raise InvalidRequestError(f"{source} is neither a file nor a directory: name documents that are there")
        for path in paths:
            found += read_documents(path) if path.suffix == ".jsonl" else [Document(_text(path), None, str(path))]
    if not found:
        told = ", ".join(map(str, sources))
        raise InvalidRequestError(f"{told}: no documents; a directory is searched for {', '.join(TEXT_SUFFIXES)} files")
    return found


def run_warm(server: WarmServer, documents: Sequence[Document]) -> Report:
    """Send documents in batches and tell what became of each. A document that fails does not keep the others.

    Raises HypicError where nothing answers at the URL, the key is refused, or the server has no room for long.
    """
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=10.0)
    began = time.perf_counter()
    outcomes: Rows = {}
    try:
        with (
            httpx.Client(base_url=server.url, headers=headers, timeout=timeout) as client,
            progress("warming", len(documents)) as done,
        ):
            for numbers in _batches(documents):
                _warm(client, server, documents, numbers, outcomes, done)
    except httpx.InvalidURL as error:
        raise InvalidRequestError(f"--url {server.url} is no URL: {error}") from error
    except httpx.HTTPError as error:
        told = f"no whole answer from {server.url}: {error or type(error).__name__}"
        raise HypicError(f"{told}; is `hypic serve` running there? --url names another place") from error
    return _report(server, [outcomes[number] for number in range(len(documents))], time.perf_counter() - began)


def _warm(
    client: httpx.Client,
    server: WarmServer,
    documents: Sequence[Document],
    numbers: list[int],
    outcomes: Rows,
    done: Advance,
) -> None:
    """One batch; where the server refuses it for one document's sake, each document by itself."""
    refusal = ""
    for attempt in range(TRIES):
        body = server.body([documents[number] for number in numbers])
        with client.stream("POST", "/v1/segments", json=body) as response:
            if response.status_code == 200:
                for row in _events(response):
                    outcomes[numbers[row["index"]]] = row
                    done()
                break
            response.read()
            refusal = _refusal(response)
        if response.status_code in (429, 503):
            time.sleep(float(response.headers.get("Retry-After", "1")) if attempt < TRIES - 1 else 0.0)
            continue
        if response.status_code not in (400, 413):
            raise HypicError(f"{server.url} refused: {refusal}")
        if len(numbers) > 1:
            for number in numbers:
                _warm(client, server, documents, [number], outcomes, done)
            return
        break
    else:
        raise HypicError(f"{server.url} had no room, asked {TRIES} times: {refusal}")
    for number in numbers:
        if number not in outcomes:
            label = documents[number].id or documents[number].title or f"document {number + 1}"
            told = refusal or "the server broke off before it said anything of this document"
            outcomes[number] = {"label": label, "tokens": 0, "status": "failed", "error": told}
            done()


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """What a stream says of each document."""
    for line in response.iter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line.removeprefix("data: "))
            if event.get("object") == "segment":
                yield event


def _refusal(response: httpx.Response) -> str:
    """The server's own words, and what to do where it asks for a key."""
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = response.text[:200]
    return f"{response.status_code}, {said}" + (" (--api-key KEY)" if response.status_code == 401 else "")


def _batches(documents: Sequence[Document]) -> Iterator[list[int]]:
    """Numbers of documents that go together."""
    batch: list[int] = []
    nbytes = 0
    for number, document in enumerate(documents):
        more = len(document.section.encode("utf-8", "replace"))
        if batch and (len(batch) == BATCH_DOCUMENTS or nbytes + more > BATCH_BYTES):
            yield batch
            batch, nbytes = [], 0
        batch.append(number)
        nbytes += more
    yield batch


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _report(server: WarmServer, rows: list[dict[str, Any]], seconds: float) -> Report:
    counts = Counter(row["status"] for row in rows)
    results = {status: counts[status] for status in STATUSES}
    found = [{name: row.get(name) for name in ("id", "label", "tokens", "status", "error")} for row in rows]
    cells = tuple(
        (str(n), str(row["label"]), str(row["status"]), str(row["error"] or ""), str(row["tokens"]))
        for n, row in enumerate(found, 1)
    )
    note = ", ".join(f"{counts[status]} {status}" for status in STATUSES) + f"; {seconds:.1f} s"
    table = Table(f"Documents at {server.url}", ("#", "document", "status", "why", "tokens"), cells, note, 4)
    return Report("warm", server.url, SERVER, {**results, "seconds": seconds, "documents": found}, (table,))
