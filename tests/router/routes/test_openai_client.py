"""OpenAI's own client over a socket: what it sends is taken, what it gets has the shape that it reads."""

import asyncio
import time
from typing import Any

import openai
import pytest
from http_service import DOCUMENTS, QUESTION
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from hypic.workers.combine import CombineWorker

ASKED: dict[str, Any] = {"model": "tiny", "messages": QUESTION, "max_tokens": 12}
WITH_DOCUMENTS: dict[str, Any] = {**ASKED, "extra_body": {"documents": DOCUMENTS}}


@pytest.fixture
def openai_client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def said(openai_client: OpenAI, **options: Any) -> str:
    text = openai_client.chat.completions.create(**{**ASKED, **options}).choices[0].message.content
    assert text
    return text


def test_models_are_listed_and_described(openai_client: OpenAI) -> None:
    (served,) = openai_client.models.list().data
    assert openai_client.models.retrieve(served.id) == served
    with pytest.raises(NotFoundError, match="gpt-4"):
        openai_client.models.retrieve("gpt-4")
    with pytest.raises(NotFoundError):
        openai_client.embeddings.create(model="tiny", input="a", encoding_format="float")


def test_a_stream_adds_up_to_the_answer_and_its_usage(openai_client: OpenAI) -> None:
    whole = openai_client.chat.completions.create(**WITH_DOCUMENTS)
    asked = {**WITH_DOCUMENTS, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(openai_client.chat.completions.create(**asked))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1] if c.choices][-1] == whole.choices[0].finish_reason
    assert whole.usage is not None
    last = chunks[-1].usage
    assert last is not None
    assert (last.prompt_tokens, last.completion_tokens) == (whole.usage.prompt_tokens, 12)
    assert last.prompt_tokens_details is not None
    assert last.prompt_tokens_details.cached_tokens


def test_the_streaming_helper_gathers_text_and_log_probabilities(openai_client: OpenAI) -> None:
    stop = said(openai_client, **WITH_DOCUMENTS)[6:8]  # at its end by length the helper raises, as it does everywhere
    asked = {**WITH_DOCUMENTS, "logprobs": True, "top_logprobs": 2, "stop": stop}
    with openai_client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        gathered = stream.get_final_completion().choices[0]
    whole = openai_client.chat.completions.create(**asked).choices[0]
    assert {"content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert gathered.message.content == whole.message.content
    assert gathered.logprobs is not None
    assert whole.logprobs is not None
    assert gathered.logprobs.content == whole.logprobs.content


def test_the_asynchronous_client_asks_many_at_once(url: str, openai_client: OpenAI) -> None:
    async def asked() -> list[str]:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

            async def one(number: int) -> str:
                options = {**WITH_DOCUMENTS, "seed": number % 3, "temperature": 1.0}
                if number % 2:
                    return (await client.chat.completions.create(**options)).choices[0].message.content or ""
                stream = await client.chat.completions.create(**options, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(number) for number in range(12)))

    answers = asyncio.run(asked())
    assert [answers[number] for number in range(3, 12)] == [answers[number % 3] for number in range(3, 12)]
    assert len(set(answers)) == 3
    assert answers[0] == said(openai_client, **{**WITH_DOCUMENTS, "seed": 0, "temperature": 1.0})


def test_several_answers_and_seeds(openai_client: OpenAI) -> None:
    sampled = {**WITH_DOCUMENTS, "temperature": 1.0, "seed": 3}
    answers = [choice.message.content for choice in openai_client.chat.completions.create(**sampled, n=3).choices]
    assert answers == [said(openai_client, **{**sampled, "seed": 3 + number}) for number in range(3)]
    texts = ["", "", ""]
    for chunk in openai_client.chat.completions.create(**sampled, n=3, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == answers


def test_stop_strings_may_span_tokens_and_begin_in_none_of_the_prompt(openai_client: OpenAI) -> None:
    """A token of this model is a byte, so every string of several characters spans tokens. What ends the prompt and
    begins the answer is no occurrence; nor is what stands across two documents."""
    whole = said(openai_client, **WITH_DOCUMENTS)
    stop = whole[4:8]
    stopped = openai_client.chat.completions.create(**WITH_DOCUMENTS, stop=["nowhere", stop]).choices[0]
    assert (stopped.finish_reason, stopped.message.content) == ("stop", whole[: whole.index(stop)])
    streamed = openai_client.chat.completions.create(**WITH_DOCUMENTS, stop=stop, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole[: whole.index(stop)]
    texts = [str(document["text"]) for document in DOCUMENTS]
    across = [f"{texts[0][-6:]}\n\n{texts[1][:6]}", f"assistant\n{whole[:2]}", QUESTION[0]["content"]]
    assert said(openai_client, **WITH_DOCUMENTS, stop=across) == whole


def test_completions_with_their_log_probabilities(openai_client: OpenAI) -> None:
    prompt = "Notes: <<PIC_SEP>>the blue key is in the red box by the door<<PIC_SEP>> The key is"
    asked: dict[str, Any] = {"model": "tiny", "prompt": [prompt, "what?"], "max_tokens": 6, "logprobs": 2, "n": 2}
    whole = openai_client.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    texts = ["", "", "", ""]
    for chunk in openai_client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    for choice in whole.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.top_logprobs is not None
        assert [len(top) for top in choice.logprobs.top_logprobs] == [2] * 6
    assert whole.usage is not None
    assert chunk.usage is not None
    assert (chunk.usage.prompt_tokens, chunk.usage.total_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.total_tokens,
    )


TAKEN: dict[str, Any] = {
    "user": "someone",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "prediction": {"type": "content", "content": "a guess"},
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "modalities": ["text"],
    "tool_choice": "none",
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_cannot_change_the_answer_is_taken(name: str, openai_client: OpenAI) -> None:
    assert said(openai_client, **{name: TAKEN[name]}) == said(openai_client)


class Answer(BaseModel):
    locker: str


def test_what_would_change_the_answer_is_refused_by_name(openai_client: OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
    refused: dict[str, Any] = {"tools": [tool], "reasoning_effort": "low", "response_format": {"type": "json_object"}}
    for name, value in refused.items():
        with pytest.raises(BadRequestError) as refusal:
            said(openai_client, **{name: value})
        assert (refusal.value.param, refusal.value.code) == (name, "unsupported_parameter")
    with pytest.raises(BadRequestError, match="response_format"):
        openai_client.chat.completions.parse(**ASKED, response_format=Answer)


def test_an_answer_that_ran_out_of_its_own_time_is_not_asked_for_again(url: str) -> None:
    client, began = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=5), time.monotonic()
    with pytest.raises(openai.APIStatusError) as late:
        client.chat.completions.create(**{**ASKED, "max_tokens": 3000}, extra_body={"timeout": 0.2})
    assert late.value.status_code == 408
    assert late.value.response.headers["x-should-retry"] == "false"
    assert late.value.response.request.headers["x-stainless-retry-count"] == "0", time.monotonic() - began


def test_a_reader_that_leaves_stops_the_work(openai_client: OpenAI, combine: CombineWorker) -> None:
    for n in (1, 3):
        stream = openai_client.chat.completions.create(**{**ASKED, "max_tokens": 3000}, n=n, stream=True)
        next(iter(stream))
        assert combine._streams
        stream.close()
        ends = time.monotonic() + 20
        while combine._streams and time.monotonic() < ends:
            time.sleep(0.02)
        assert not combine._streams
