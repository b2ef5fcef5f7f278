"""POST /v1/completions: prompts in, their continuations out.

Input: a CompletionRequest. Output: a CompletionReply, or a stream of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.streaming import CLIENT_LEFT, DONE, KEEP_ALIVE, EventStream, event, while_connected
from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.observe.request_trace import request_trace_of
from windlass.serve.gateway.routes.generation import (
    Answer,
    Pieces,
    Scored,
    TextDelta,
    build,
    fit,
    pieces,
    spent,
    usage,
    whole,
)
from windlass.serve.gateway.schemas.frames import QuickFrames
from windlass.serve.gateway.schemas.replies import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionReply,
    Usage,
)
from windlass.serve.gateway.schemas.requests import DEFAULT_COMPLETION_TOKENS, CompletionRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, check_tokens, conversation_of
from windlass.serve.gateway.text.tokenise import TextCodec, token_name
from windlass.spec.protocol.wire import Generate

_encode = msgspec.json.Encoder(enc_hook=BaseModel.model_dump).encode


class CompletionTask(msgspec.Struct, frozen=True):
    """A prepared request: the requests for the engine, and the answers made from its tokens."""

    id: str
    model: str
    created: int
    text: TextCodec
    requests: list[Generate]
    answers: list[Answer]
    shown: list[str] | None
    scored: bool
    alternatives: bool
    prompt_tokens: int

    def logprobs(self, piece: TextDelta) -> CompletionLogprobs | None:
        return logprobs_of(self.text, piece.scored, self.alternatives) if self.scored else None

    def choice(self, place: int, piece: TextDelta) -> CompletionChoice:
        logprobs = self.logprobs(piece)
        return CompletionChoice(index=place, text=piece.text, logprobs=logprobs, finish_reason=piece.finish)

    def reply(self, choices: list[CompletionChoice], spent: Usage | None) -> CompletionReply:
        return CompletionReply(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.model,
            choices=choices,
            usage=spent,
        )


async def complete(request: Request, body: CompletionRequest, service: GatewayService) -> Response:
    """Answer a request, whole or as a stream."""
    caller = caller_of(request)
    trace, opening = request_trace_of(request), body.prompt[0]
    endpoint = service.endpoint(body.model, conversation_of(caller.tenant, body.user, opening))
    if not endpoint.is_ready:
        await endpoint.wait_until_ready()
    trace.standby = endpoint.standby
    state = request.scope["state"]
    task = await prepare(body, endpoint, state["work_id"], caller.tenant)
    handle = await service.submit(caller, task.requests, state["deadline"], trace)
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        arriving = pieces(handle, task.answers, task.shown)
        return EventStream(_frames(task, arriving, with_usage), request.state.request_id, handle.close)
    with closing(handle):
        answered = await while_connected(request, whole(handle, task.answers, task.shown))
    if answered is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(_encode(_reply(task, answered)), media_type="application/json")


async def prepare(
    body: CompletionRequest, endpoint: ModelEndpoint, request_id: str, tenant: str
) -> CompletionTask:
    """Tokenise, check against the model, and build the engine's requests."""
    writer = endpoint.writer
    check_tokens(list(body.logit_bias), writer.vocabulary, "logit_bias")
    text, stop_tokens = endpoint.served.text, endpoint.stop_tokens
    requests: list[Generate] = []
    answers: list[Answer] = []
    shown: list[str] = []
    prompt_tokens = 0
    for number, prompt in enumerate(body.prompt):
        tokens = await endpoint.encode(prompt, special=True, param="prompt")
        max_tokens = fit(
            len(tokens),
            body.max_tokens,
            default=endpoint.service.default_tokens(DEFAULT_COMPLETION_TOKENS),
            context=writer.context,
            param="max_tokens" if body.max_tokens else "prompt",
        )
        requests += build(
            endpoint,
            body,
            tokens,
            id_=f"{request_id}-{number}",
            max_tokens=max_tokens,
            tenant=tenant,
            logprobs=-1 if body.logprobs is None else body.logprobs,
            score_prompt=bool(body.echo) and body.logprobs is not None,
        )
        answers += [Answer(text, body.stop, stop_tokens, prompt=tokens) for _ in range(body.n or 1)]
        shown += [prompt if isinstance(prompt, str) else text.decode(tokens)] * (body.n or 1)
        prompt_tokens += len(tokens)
    return CompletionTask(
        id=f"cmpl-{request_id}",
        model=endpoint.id,
        created=int(time.time()),
        text=text,
        requests=requests,
        answers=answers,
        shown=shown if body.echo else None,
        scored=body.logprobs is not None,
        alternatives=bool(body.logprobs),
        prompt_tokens=prompt_tokens,
    )


def logprobs_of(text: TextCodec, scored: Sequence[Scored], alternatives: bool) -> CompletionLogprobs:
    """Return log-probabilities as parallel lists; the chosen token is always among its alternatives."""
    tops: list[dict[str, float] | None] = []
    for item in scored:
        if item.logprob is None:
            tops.append(None)
            continue
        top = {token_name(text, other.token): other.logprob for other in item.alternatives}
        tops.append(top | {token_name(text, item.token): item.logprob})
    return CompletionLogprobs(
        tokens=[token_name(text, item.token) for item in scored],
        token_logprobs=[item.logprob for item in scored],
        top_logprobs=tops if alternatives else None,
        text_offset=[item.offset for item in scored],
    )


def _echoes(task: CompletionTask) -> list[TextDelta]:
    """Return the prompts to begin with, unless the engine sends them with their scores."""
    if task.shown is None or task.scored:
        return []
    return [answer.echo(text, None) for answer, text in zip(task.answers, task.shown, strict=True)]


def _reply(task: CompletionTask, answered: Sequence[TextDelta]) -> dict[str, Any]:
    """Return a CompletionReply as a dictionary, without validating it."""
    begun = task.shown if task.shown is not None and not task.scored else [""] * len(answered)
    choices = [
        {
            "index": place,
            "text": begun[place] + piece.text,
            "logprobs": task.logprobs(piece),
            "finish_reason": piece.finish,
        }
        for place, piece in enumerate(answered)
    ]
    return {
        "id": task.id,
        "object": "text_completion",
        "created": task.created,
        "model": task.model,
        "choices": choices,
        "usage": spent(task.prompt_tokens, task.answers),
    }


async def _frames(task: CompletionTask, arriving: Pieces, with_usage: bool) -> AsyncGenerator[bytes, None]:
    for place, echo in enumerate(_echoes(task)):
        yield _chunk(task, place, echo, with_usage)
    places = range(len(task.answers))
    quick = [QuickFrames(partial(_text_chunk, task, place, with_usage=with_usage)) for place in places]
    async with aclosing(arriving):
        async for arrived in arriving:
            frames = [_frame(task, place, piece, quick[place], with_usage) for place, piece in arrived]
            yield b"".join(frames) if arrived else KEEP_ALIVE
    if with_usage:
        yield event(task.reply([], usage(task.prompt_tokens, task.answers)))
    yield DONE


def _frame(task: CompletionTask, place: int, piece: TextDelta, quick: QuickFrames, with_usage: bool) -> bytes:
    """Return the chunk of a piece, or nothing if the piece is empty."""
    if task.scored or piece.finish:
        has_news = piece.text or piece.scored or piece.finish
        return _chunk(task, place, piece, with_usage) if has_news else b""
    return quick.write(piece.text) if piece.text else b""


def _text_chunk(task: CompletionTask, place: int, text: str, *, with_usage: bool) -> bytes:
    return _chunk(task, place, TextDelta(text), with_usage)


def _chunk(task: CompletionTask, place: int, piece: TextDelta, with_usage: bool) -> bytes:
    """Return a chunk; its `usage` is null if the client wants usage at the end, and absent otherwise."""
    reply = task.reply([task.choice(place, piece)], None)
    if not with_usage:
        reply.model_fields_set.discard("usage")
    return event(reply)
