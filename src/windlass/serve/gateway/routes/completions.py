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
    """A request made ready: what the engine is asked, and what becomes of its tokens."""

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
        return told(self.text, piece.scored, self.alternatives) if self.scored else None

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


async def complete(request: Request, ask: CompletionRequest, service: GatewayService) -> Response:
    """Answer a request, whole or as a stream."""
    caller = caller_of(request)
    journey, opening = request_trace_of(request), ask.prompt[0]
    desk = service.desk(ask.model, conversation_of(caller.tenant, ask.user, opening))
    if not desk.is_ready:
        await desk.meet()
    journey.standby = desk.standby
    state = request.scope["state"]
    work = await prepare(ask, desk, state["work_id"], caller.tenant)
    ticket = await service.ask(caller, work.requests, state["deadline"], journey)
    if ask.stream:
        with_usage = bool(ask.stream_options and ask.stream_options.include_usage)
        arriving = pieces(ticket, work.answers, work.shown)
        return EventStream(_frames(work, arriving, with_usage), request.state.request_id, ticket.close)
    with closing(ticket):
        answered = await while_connected(request, whole(ticket, work.answers, work.shown))
    if answered is None:
        return Response(status_code=CLIENT_LEFT)
    return Response(_encode(_reply(work, answered)), media_type="application/json")


async def prepare(
    ask: CompletionRequest, desk: ModelEndpoint, request_id: str, tenant: str
) -> CompletionTask:
    """Tokenise, check against the model, and write the engine's orders."""
    writer = desk.writer
    check_tokens(list(ask.logit_bias), writer.vocabulary, "logit_bias")
    text, stop_tokens = desk.served.text, desk.stop_tokens
    requests: list[Generate] = []
    answers: list[Answer] = []
    shown: list[str] = []
    read = 0
    for number, prompt in enumerate(ask.prompt):
        tokens = await desk.encode(prompt, special=True, param="prompt")
        most = fit(
            len(tokens),
            ask.max_tokens,
            default=desk.service.default_tokens(DEFAULT_COMPLETION_TOKENS),
            context=writer.context,
            param="max_tokens" if ask.max_tokens else "prompt",
        )
        requests += build(
            desk,
            ask,
            tokens,
            id_=f"{request_id}-{number}",
            max_tokens=most,
            tenant=tenant,
            logprobs=-1 if ask.logprobs is None else ask.logprobs,
            score_prompt=bool(ask.echo) and ask.logprobs is not None,
        )
        answers += [Answer(text, ask.stop, stop_tokens, prompt=tokens) for _ in range(ask.n or 1)]
        shown += [prompt if isinstance(prompt, str) else text.decode(tokens)] * (ask.n or 1)
        read += len(tokens)
    return CompletionTask(
        id=f"cmpl-{request_id}",
        model=desk.id,
        created=int(time.time()),
        text=text,
        requests=requests,
        answers=answers,
        shown=shown if ask.echo else None,
        scored=ask.logprobs is not None,
        alternatives=bool(ask.logprobs),
        prompt_tokens=read,
    )


def told(text: TextCodec, scored: Sequence[Scored], alternatives: bool) -> CompletionLogprobs:
    """Write log-probabilities as parallel lists; the chosen token is always among its rivals."""
    tops: list[dict[str, float] | None] = []
    for one in scored:
        if one.logprob is None:
            tops.append(None)
            continue
        rivals = {token_name(text, rival.token): rival.logprob for rival in one.alternatives}
        tops.append(rivals | {token_name(text, one.token): one.logprob})
    return CompletionLogprobs(
        tokens=[token_name(text, one.token) for one in scored],
        token_logprobs=[one.logprob for one in scored],
        top_logprobs=tops if alternatives else None,
        text_offset=[one.offset for one in scored],
    )


def _echoes(work: CompletionTask) -> list[TextDelta]:
    """Return the prompts to begin with, unless they come with their scores."""
    if work.shown is None or work.scored:
        return []
    return [answer.echo(text, None) for answer, text in zip(work.answers, work.shown, strict=True)]


def _reply(work: CompletionTask, answered: Sequence[TextDelta]) -> dict[str, Any]:
    """Return what replies.CompletionReply describes, without checking each of its parts."""
    begun = work.shown if work.shown is not None and not work.scored else [""] * len(answered)
    choices = [
        {
            "index": place,
            "text": begun[place] + piece.text,
            "logprobs": work.logprobs(piece),
            "finish_reason": piece.finish,
        }
        for place, piece in enumerate(answered)
    ]
    return {
        "id": work.id,
        "object": "text_completion",
        "created": work.created,
        "model": work.model,
        "choices": choices,
        "usage": spent(work.prompt_tokens, work.answers),
    }


async def _frames(work: CompletionTask, arriving: Pieces, with_usage: bool) -> AsyncGenerator[bytes, None]:
    for place, echo in enumerate(_echoes(work)):
        yield _chunk(work, place, echo, with_usage)
    places = range(len(work.answers))
    quick = [QuickFrames(partial(_text_chunk, work, place, with_usage=with_usage)) for place in places]
    async with aclosing(arriving):
        async for arrived in arriving:
            frames = [_frame(work, place, piece, quick[place], with_usage) for place, piece in arrived]
            yield b"".join(frames) if arrived else KEEP_ALIVE
    if with_usage:
        yield event(work.reply([], usage(work.prompt_tokens, work.answers)))
    yield DONE


def _frame(work: CompletionTask, place: int, piece: TextDelta, quick: QuickFrames, with_usage: bool) -> bytes:
    """Write what a piece adds, if it adds anything."""
    if work.scored or piece.finish:
        has_news = piece.text or piece.scored or piece.finish
        return _chunk(work, place, piece, with_usage) if has_news else b""
    return quick.write(piece.text) if piece.text else b""


def _text_chunk(work: CompletionTask, place: int, text: str, *, with_usage: bool) -> bytes:
    return _chunk(work, place, TextDelta(text), with_usage)


def _chunk(work: CompletionTask, place: int, piece: TextDelta, with_usage: bool) -> bytes:
    """Write a chunk; `usage` is null in it when counts were asked for, and absent otherwise."""
    reply = work.reply([work.choice(place, piece)], None)
    if not with_usage:
        reply.model_fields_set.discard("usage")
    return event(reply)
