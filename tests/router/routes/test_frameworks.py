"""Two frameworks that RAG services are built with, over a socket, with documents that are found again."""

from typing import Any

import pytest
from http_service import DOCUMENTS
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from llama_index.core.llms import ChatMessage, MessageRole
from llama_index.llms.openai_like import OpenAILike


@pytest.fixture
def langchain(url: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model="tiny", max_tokens=8, temperature=0, stream_usage=True,
        extra_body={"documents": DOCUMENTS},
    )  # fmt: skip


def test_langchain_invokes_streams_and_batches(langchain: ChatOpenAI) -> None:
    langchain.invoke("why?")  # the documents are cached now
    whole = langchain.invoke("what?")
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_token_details"]["cache_read"] > 0
    streamed = None
    for chunk in langchain.stream("what?"):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert streamed.content == whole.content
    assert streamed.usage_metadata == whole.usage_metadata
    assert [answer.content for answer in langchain.batch(["what?"] * 3)] == [whole.content] * 3


def test_langchain_holds_a_conversation_over_documents_of_its_own(url: str) -> None:
    documents = [Document(str(d["text"]), metadata={"source": number}) for number, d in enumerate(DOCUMENTS)]
    fields = [{"text": d.page_content, "metadata": d.metadata} for d in documents]
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="tiny", max_tokens=8)
    bound = model.bind(extra_body={"documents": fields, "session_id": "talk"}, stop=["never said"])
    history: list[Any] = [SystemMessage("Be brief."), HumanMessage("what?", name="someone")]
    history += [bound.invoke(history), HumanMessage([{"type": "text", "text": "and why?"}])]
    assert isinstance(history[2], AIMessage)
    answer = bound.invoke(history)
    assert answer.response_metadata["finish_reason"] == "length"


@pytest.mark.parametrize("is_chat_model", [True, False], ids=["chat", "completions"])
def test_llama_index_completes_chats_and_streams(url: str, is_chat_model: bool) -> None:
    kwargs: dict[str, Any] = {"extra_body": {"documents": DOCUMENTS}} if is_chat_model else {}
    llm = OpenAILike(
        model="tiny", api_base=f"{url}/v1", api_key="none", is_chat_model=is_chat_model, max_tokens=8, temperature=0.0,
        additional_kwargs=kwargs,
    )  # fmt: skip
    completed = llm.complete("what?").text
    assert completed
    assert list(llm.stream_complete("what?"))[-1].text == completed
    messages = [
        ChatMessage(role=MessageRole.SYSTEM, content="Be brief."),
        ChatMessage(role=MessageRole.USER, content="what?"),
    ]
    said = llm.chat(messages).message.content
    assert said
    assert list(llm.stream_chat(messages))[-1].message.content == said
