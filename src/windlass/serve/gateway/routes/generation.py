"""What completions and chat share: the life of a request that generates text.

    generate:  find the endpoint -> prepare (fit, build) -> submit -> whole -> reply
                                                                   -> stream -> chunks

A route has a function `prepare`, which returns its own kind of TextAnswers; everything else is here.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.errors import ApiError
from windlass.http.streaming import (
    CLIENT_LEFT,
    DONE,
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    EventStream,
    event,
    while_connected,
)
from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.fleet.request_handle import AnswerMessage, RequestHandle
from windlass.serve.gateway.observe.request_trace import request_trace_of
from windlass.serve.gateway.routes.pipeline import ready_endpoint
from windlass.serve.gateway.schemas.replies import FinishReason, Usage
from windlass.serve.gateway.schemas.requests import Sampling
from windlass.serve.gateway.service import GatewayService, ModelEndpoint
from windlass.serve.gateway.text.answer import Answer, Scored, TextDelta
from windlass.serve.gateway.text.tokenise import NumberText, TextCodec
from windlass.spec.protocol.wire import Generate, PromptScores, Tokens

SEED_STEP = 0x9E3779B97F4A7C15
"""Distance between the seeds of sibling answers; the first answer has the requested seed."""

S = TypeVar("S", bound=Sampling)
Prepare = Callable[[S, ModelEndpoint, str, str], Awaitable["TextAnswers"]]
"""Makes the answers to a body: with its endpoint, the id of the work and the tenant."""

MARK = "\0"
"""No model name, answer or request id contains NUL."""

_write = msgspec.json.Encoder().encode
_MARKED = _write(MARK)
_encode = msgspec.json.Encoder(enc_hook=BaseModel.model_dump).encode


class TextAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The answers to one request: the requests for the engine, and how a route writes what comes back.

    Each route has a kind with four hooks: `whole_choice` for the reply; `first_choices`, `next_choices` and
    `chunk` for the stream.
    """

    kind: ClassVar[str]
    """The `object` of the reply."""
    id: str
    model: str
    created: int
    text: TextCodec
    requests: list[Generate]
    answers: list[Answer]
    prompt_tokens: int
    scored: bool
    """Whether log-probabilities are returned."""
    shown: list[str] | None = None
    """The prompts, if the answers begin with them."""

    def whole_choice(self, place: int, delta: TextDelta) -> dict[str, Any]:
        """Return a whole answer as a choice of the reply."""
        raise NotImplementedError

    def first_choices(self) -> list[Any]:
        """Return the choices that a stream begins with."""
        raise NotImplementedError

    def next_choices(self, place: int, delta: TextDelta) -> list[Any]:
        """Return the choices that a delta adds to a stream; each is sent as a chunk."""
        raise NotImplementedError

    def chunk(self, choices: list[Any], usage: Usage | None) -> BaseModel:
        """Return a chunk; with `usage`, the last one."""
        raise NotImplementedError

    def reply(self, deltas: Sequence[TextDelta]) -> dict[str, Any]:
        """Return the reply as a dictionary; to build and validate its model takes ten times as long."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": [self.whole_choice(place, delta) for place, delta in enumerate(deltas)],
            "usage": self.usage(),
        }

    def usage(self) -> dict[str, int]:
        """Return the token counts of replies.Usage as a dictionary."""
        written = sum([answer.tokens for answer in self.answers])
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        }

    @property
    def finished(self) -> bool:
        return all(answer.finished for answer in self.answers)


async def generate(
    request: Request, body: S, service: GatewayService, opening: str | list[int], prepare: Prepare[S]
) -> Response:
    """Answer a request, whole or as a stream; `opening` is how its conversation begins."""
    caller, state = caller_of(request), request.scope["state"]
    endpoint = await ready_endpoint(request, body, service, opening)
    answers = await prepare(body, endpoint, state["work_id"], caller.tenant)
    handle = await service.submit(caller, answers.requests, state["deadline"], request_trace_of(request))
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        frames = stream(handle, answers, with_usage=with_usage)
        return EventStream(frames, request.state.request_id, handle.close)
    with closing(handle):
        deltas = await while_connected(request, whole(handle, answers))
    if deltas is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(_encode(answers.reply(deltas)), media_type="application/json")


def fit(prompt_tokens: int, requested: int | None, *, default: int, context: int, param: str) -> int:
    """Return how many tokens may be generated; a requested number is granted in full or refused."""
    wanted = requested if requested is not None else max(1, min(default, context - prompt_tokens))
    if prompt_tokens + wanted > context:
        left = context - prompt_tokens
        raise ApiError(
            "context_length_exceeded",
            f"the prompt has {prompt_tokens} tokens and {wanted} more are requested, "
            f"{prompt_tokens + wanted} together; the model's context is {context}",
            param=param,
            allowed={"type": "integer", "minimum": 1, "maximum": left} if left > 0 else None,
        )
    return wanted


def build(
    endpoint: ModelEndpoint,
    body: Sampling,
    prompt: list[int],
    *,
    id_: str,
    max_tokens: int,
    tenant: str,
    logprobs: int,
    score_prompt: bool = False,
) -> list[Generate]:
    """Return one Generate message for each of the n answers to a prompt."""
    seed = body.seed if body.seed is not None else secrets.randbits(63)
    grammar = body.grammar
    if grammar is not None and isinstance(endpoint.served.text, NumberText):
        raise ApiError("no_tokenizer", "structured output needs a tokenizer, and this model has none")
    return [
        Generate(
            id=f"{id_}-{number}",
            tokens=prompt,
            max_tokens=max_tokens,
            temperature=_or(body.temperature, 1.0),
            top_k=max(0, body.top_k or 0),
            top_p=_or(body.top_p, 1.0),
            min_p=_or(body.min_p, 0.0),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            seed=(seed + number * SEED_STEP) % (1 << 63),
            logprobs=logprobs,
            stop_tokens=endpoint.stop_tokens,
            logit_bias=body.logit_bias,
            score_prompt=score_prompt,
            model=endpoint.model,
            adapter=endpoint.adapter,
            tenant=tenant,
            priority=body.priority or 0,
            grammar=grammar,
        )
        for number in range(body.n or 1)
    ]


async def whole(handle: RequestHandle, answers: TextAnswers) -> list[TextDelta]:
    """Wait for all deltas, and join those of each answer."""
    texts: list[list[str]] = [[] for _ in answers.answers]
    scored: list[list[Scored]] = [[] for _ in answers.answers]
    finish: list[FinishReason | None] = [None for _ in answers.answers]
    while not answers.finished:
        for place, delta in _deltas(await handle.next(), handle, answers):
            texts[place].append(delta.text)
            scored[place] += delta.scored
            finish[place] = delta.finish
    return [TextDelta("".join(text), scored[place], finish[place]) for place, text in enumerate(texts)]


async def stream(
    handle: RequestHandle, answers: TextAnswers, *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Write the answers as server-sent events; a comment after KEEP_ALIVE_S of silence."""
    opening = b"".join(_chunk(answers, choice, with_usage) for choice in answers.first_choices())
    if opening:
        yield opening
    quick = [
        QuickFrames(partial(text_frame, answers, place, with_usage=with_usage))
        for place in range(len(answers.answers))
    ]
    while not answers.finished:
        deltas = _deltas(await handle.next(KEEP_ALIVE_S), handle, answers)
        frames = [_frame(answers, place, delta, quick[place], with_usage) for place, delta in deltas]
        yield b"".join(frames) if frames else KEEP_ALIVE
    if with_usage:
        yield event(answers.chunk([], Usage.model_validate(answers.usage())))
    yield DONE


class QuickFrames:
    """Writes the frames of one answer quickly: they differ only in their text.

    The model writes one frame with a marker as text. What comes before and after the marker is then put
    around every text, so a token costs the encoding of one JSON string, and every frame is byte for byte that
    of the model.
    """

    def __init__(self, slow: Callable[[str], bytes]) -> None:
        self._before, _, self._after = slow(MARK).rpartition(_MARKED)

    def write(self, text: str) -> bytes:
        """Return the frame with this text."""
        return self._before + _write(text) + self._after


def text_frame(answers: TextAnswers, place: int, text: str, *, with_usage: bool) -> bytes:
    """Return the frame of a text without scores or an end."""
    return b"".join(
        _chunk(answers, choice, with_usage) for choice in answers.next_choices(place, TextDelta(text))
    )


def _frame(answers: TextAnswers, place: int, delta: TextDelta, quick: QuickFrames, with_usage: bool) -> bytes:
    """Return the frames of a delta; none if it is empty."""
    if delta.text and not (delta.finish or delta.scored or answers.scored):
        return quick.write(delta.text)
    return b"".join(_chunk(answers, choice, with_usage) for choice in answers.next_choices(place, delta))


def _chunk(answers: TextAnswers, choice: BaseModel, with_usage: bool) -> bytes:
    """Return a frame; its `usage` is null if the client wants usage at the end, and absent otherwise."""
    chunk = answers.chunk([choice], None)
    if not with_usage:
        chunk.model_fields_set.discard("usage")
    return event(chunk)


def _deltas(
    messages: Sequence[tuple[int, AnswerMessage]], handle: RequestHandle, answers: TextAnswers
) -> Iterator[tuple[int, TextDelta]]:
    """Decode messages; cancel an answer at the engine when a stop string ends it early."""
    for place, message in messages:
        answer = answers.answers[place]
        if answer.finished:
            continue
        if isinstance(message, Tokens):
            yield place, answer.push(message)
            if answer.finished:
                handle.finish(place)
        elif isinstance(message, PromptScores):
            yield place, answer.echo(answers.shown[place] if answers.shown else "", message)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
