"""Bodies of the generating routes to requests of the engine. What is not served is refused here, by name."""

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypic.arms import arm_named
from hypic.prompt import chat_segments, marked_segments, token_segments
from hypic.request import GenerationRequest, SamplingParams
from hypic.router.bodies.chat import ChatBody, MessageBody
from hypic.router.bodies.completions import CompletionBody
from hypic.router.bodies.generate import GenerateBody
from hypic.router.bodies.shared import CacheFields, SamplingFields
from hypic.router.faults import ParameterError
from hypic.router.keys import Tenant
from hypic.router.limits import Encoder, at_most, documents_of
from hypic.router.service import ServedModel, Service
from hypic.segment import Message, Segment

DEFAULT_ANSWER_TOKENS = 512
"""Longest answer where a request does not say, if so many fit the model."""

Prompt = str | Sequence[int]


def chat_request(service: Service, tenant: Tenant, body: ChatBody) -> GenerationRequest:
    """Tokenise a chat. Raises InvalidRequestError."""
    model = service.served
    check_model(body.model, model)
    _refuse_unserved(body)
    at_most("top_logprobs", body.top_logprobs or 0, service.config.max_top_logprobs)
    if body.top_logprobs and not body.logprobs:
        raise ParameterError("top_logprobs: logprobs must be true with it", "top_logprobs")
    salt = tenant.salt(body.cache_salt)
    at_most("messages", len(body.messages), service.config.max_messages)
    documents = documents_of(body.documents or (), service.config)
    messages = [_message(message) for message in body.messages]
    segments = chat_segments(model.tokenizer, messages, documents, Encoder(service, model, salt))
    params = _sampling(service, model, body, segments, body.max_completion_tokens or body.max_tokens)
    if body.logprobs:
        params = replace(params, logprobs=body.top_logprobs or 0)
    return _request("chatcmpl", model, body, segments, params, salt, body.n)


def completion_requests(service: Service, tenant: Tenant, body: CompletionBody) -> list[GenerationRequest]:
    """Tokenise raw prompts, a request for each. Raises InvalidRequestError."""
    model = service.served
    check_model(body.model, model)
    if body.echo:
        raise _unserved("echo", body.echo)
    if body.suffix:
        raise _unserved("suffix", body.suffix)
    if body.best_of not in (None, 1, body.n):
        raise _unserved("best_of", body.best_of)
    at_most("logprobs", body.logprobs or 0, service.config.max_top_logprobs)
    salt = tenant.salt(body.cache_salt)
    found = []
    for prompt in _prompts("prompt", body.prompt, service):
        segments = _raw_segments(service, model, salt, prompt)
        params = replace(_sampling(service, model, body, segments, body.max_tokens), logprobs=body.logprobs)
        found.append(_request("cmpl", model, body, segments, params, salt, body.n))
    return found


def generate_requests(service: Service, tenant: Tenant, body: GenerateBody) -> list[GenerationRequest]:
    """Tokenise the prompts of SGLang's body, a request for each. Raises InvalidRequestError."""
    model, salt = service.served, tenant.salt(body.cache_salt)
    if (body.text is None) == (body.input_ids is None):
        raise ParameterError("text: give either text or input_ids", "text")
    if body.session_params is not None:
        body = body.model_copy(update={"session_id": body.session_params.id})
    at_most("top_logprobs_num", body.top_logprobs_num or 0, service.config.max_top_logprobs)
    name, given = ("text", body.text) if body.text is not None else ("input_ids", body.input_ids)
    params = _sglang_sampling(service, model, body)
    choices = body.sampling_params.n if body.sampling_params is not None else 1
    return [
        _request("gen", model, body, _raw_segments(service, model, salt, prompt), params, salt, choices)
        for prompt in _prompts(name, given, service)
    ]


def check_model(name: str | None, model: ServedModel) -> None:
    """Raises ParameterError for another model's name."""
    if name is not None and name != model.id:
        told = f"there is no model {name!r:.100} here; this server has {model.id!r}"
        raise ParameterError(told, "model", "model_not_found", 404)


def identifier(prefix: str) -> str:
    """A name for a request that no other has."""
    return f"{prefix}-{uuid.uuid4().hex}"


def _request(
    prefix: str,
    model: ServedModel,
    body: CacheFields,
    segments: tuple[Segment, ...],
    params: SamplingParams,
    salt: str,
    choices: int | None,
) -> GenerationRequest:
    return GenerationRequest(
        identifier(prefix),
        segments,
        arm_named((body.hypic and body.hypic.arm) or model.arm),
        params,
        salt,
        body.session_id or "",
        choices or 1,
        timeout_seconds=body.timeout or math.inf,
    )


def _sampling(
    service: Service, model: ServedModel, body: SamplingFields, segments: tuple[Segment, ...], asked: int | None
) -> SamplingParams:
    config, stop = service.config, _stops(service, body.stop)
    at_most("n", body.n or 1, config.max_choices)
    room = model.max_tokens - sum(len(segment) for segment in segments)
    return SamplingParams(
        max_tokens=asked or max(1, min(DEFAULT_ANSWER_TOKENS, room)),
        temperature=model.temperature if body.temperature is None else float(body.temperature),
        top_p=model.top_p if body.top_p is None else float(body.top_p),
        seed=body.seed,
        stop=stop,
        ignore_eos=bool(body.ignore_eos),
        top_k=max(0, body.top_k or 0),
        min_p=float(body.min_p or 0.0),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        min_tokens=body.min_tokens or 0,
        presence_penalty=float(body.presence_penalty or 0.0),
        frequency_penalty=float(body.frequency_penalty or 0.0),
        repetition_penalty=float(body.repetition_penalty or 1.0),
        logit_bias=tuple((int(token), float(bias)) for token, bias in (body.logit_bias or {}).items()),
    )


def _sglang_sampling(service: Service, model: ServedModel, body: GenerateBody) -> SamplingParams:
    asked = body.sampling_params
    logprobs = (body.top_logprobs_num or 0) if body.return_logprob else None
    if asked is None:
        return SamplingParams(temperature=model.temperature, top_p=model.top_p, logprobs=logprobs)
    at_most("sampling_params.n", asked.n or 1, service.config.max_choices)
    return SamplingParams(
        max_tokens=asked.max_new_tokens or 128,
        temperature=model.temperature if asked.temperature is None else float(asked.temperature),
        top_p=model.top_p if asked.top_p is None else float(asked.top_p),
        seed=asked.sampling_seed,
        stop=_stops(service, asked.stop),
        ignore_eos=bool(asked.ignore_eos),
        top_k=max(0, asked.top_k or 0),
        min_p=float(asked.min_p or 0.0),
        stop_token_ids=tuple(asked.stop_token_ids or ()),
        min_tokens=asked.min_new_tokens or 0,
        presence_penalty=float(asked.presence_penalty or 0.0),
        frequency_penalty=float(asked.frequency_penalty or 0.0),
        repetition_penalty=float(asked.repetition_penalty or 1.0),
        logprobs=logprobs,
    )


def _stops(service: Service, stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    at_most("stop", len(stops), service.config.max_stop_strings)
    return stops


def _prompts(name: str, given: Any, service: Service) -> list[Prompt]:
    """One prompt or a list of them, each a text or token ids, as a list."""
    one = isinstance(given, str) or bool(given and isinstance(given[0], int))
    prompts = [given] if one else list(given)
    if not prompts:
        raise ParameterError(f"{name}: it is empty", name)
    at_most(name, len(prompts), service.config.max_prompts, "prompts up to")
    return prompts


def _raw_segments(service: Service, model: ServedModel, salt: str, prompt: Prompt) -> tuple[Segment, ...]:
    encoder = Encoder(service, model, salt)
    if isinstance(prompt, str):
        at_most("prompt", len(prompt.encode()), service.config.max_body_bytes, "UTF-8 bytes up to")
        return marked_segments(model.tokenizer, prompt, encoder)
    encoder.take(prompt)
    return token_segments(prompt)


def _message(message: MessageBody) -> Message:
    role = "system" if message.role == "developer" else message.role
    content = message.content or ""
    if isinstance(content, str):
        return Message(role, content)
    ends = frozenset(number for number, part in enumerate(content) if part.cache_control is not None)
    return Message(role, tuple(part.text for part in content) or "", ends or None)


def _refuse_unserved(body: ChatBody) -> None:
    """Raise ParameterError for what would change the answer and is not served."""
    neutral: dict[str, Callable[[Any], bool]] = {
        "tools": lambda value: value == [],
        "functions": lambda value: value == [],
        "tool_choice": lambda value: value in ("none", "auto"),
        "function_call": lambda value: value in ("none", "auto"),
        "response_format": lambda value: value == {"type": "text"},
        "modalities": lambda value: value == ["text"],
    }
    for name in (*neutral, "audio", "reasoning_effort", "verbosity", "web_search_options"):
        value = getattr(body, name)
        if value is not None and not (name in neutral and neutral[name](value)):
            raise _unserved(name, value)


def _unserved(name: str, value: Any) -> ParameterError:
    return ParameterError(f"{name} = {value!a:.100} is not served: leave {name} out", name, "unsupported_parameter")
