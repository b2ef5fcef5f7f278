"""What completions and chat share: from sampling settings to engine requests, from tokens to pieces of text.

prompts -> fit (context) -> build (Generate messages) -> RequestHandle -> Answer.push -> TextDelta
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from windlass.http.errors import ApiError
from windlass.http.streaming import KEEP_ALIVE_S
from windlass.serve.gateway.fleet.request_handle import RequestHandle
from windlass.serve.gateway.schemas.replies import FinishReason, Usage
from windlass.serve.gateway.schemas.requests import Sampling
from windlass.serve.gateway.service import ModelEndpoint
from windlass.serve.gateway.text.detokenise import StopFilter
from windlass.serve.gateway.text.tokenise import NumberText, TextCodec
from windlass.spec.protocol.wire import Alternative, EmbeddingVectors, Generate, PromptScores, Tokens

SEED_STEP = 0x9E3779B97F4A7C15
"""Distance between the seeds of sibling answers; the first answer has the requested seed."""


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


@dataclass(frozen=True)
class Scored:
    """A token with its log-probability; `offset` is where its text begins in the answer."""

    token: int
    logprob: float | None
    alternatives: Sequence[Alternative]
    offset: int


class TextDelta(NamedTuple):
    """What one message adds to an answer."""

    text: str
    scored: Sequence[Scored] = ()
    finish: FinishReason | None = None


class Answer:
    """One answer in progress: tokens in, pieces of text out."""

    def __init__(
        self, text: TextCodec, stops: Sequence[str], stop_tokens: Sequence[int], *, prompt: Sequence[int] = ()
    ) -> None:
        self._text = text
        self._detokenizer = text.detokenizer()
        self._filter = StopFilter(stops)
        self._is_plain = not stops
        """Whether text is sent as it comes, so that offsets need not be tracked."""
        self._stop_tokens = frozenset(stop_tokens)
        self._prompt = prompt
        self._made = self._shown = 0
        self._pending: list[Scored] = []
        self.tokens = 0
        self.finished = False

    def echo(self, shown: str, scores: PromptScores | None) -> TextDelta:
        """Begin the answer with the prompt itself; the engine sends its scores before any token."""
        offset = self._made = self._shown = len(shown)
        if scores is None:
            return TextDelta(shown)
        scored = []
        detokenizer, place = self._text.detokenizer(), 0
        logprobs = [None, *scores.logprobs]
        alternatives: list[list[Alternative]] = [[], *scores.alternatives]
        for number, token in enumerate(self._prompt):
            top = alternatives[number] if number < len(alternatives) else []
            scored.append(Scored(token, logprobs[number], top, min(place, offset)))
            place += len(detokenizer.push(token))
        return TextDelta(shown, scored)

    def push(self, message: Tokens) -> TextDelta:
        """Take the next tokens; return the text that may be sent now."""
        if self._is_plain and not message.logprobs and not self._pending:
            self.tokens += len(message.tokens)
            return self._push_plain(message)
        whole = TextDelta("")
        for single in _one_by_one(message):
            piece = self._push_one(single)
            whole = TextDelta(whole.text + piece.text, [*whole.scored, *piece.scored], piece.finish)
            if self.finished:
                break
        return whole

    def _push_one(self, message: Tokens) -> TextDelta:
        self.tokens += len(message.tokens)
        made = self._decode(message)
        cut = self._filter.push(made)
        shown = cut.text
        finish: FinishReason | None = "stop" if cut.stopped or message.finish == "stop" else None
        if message.finish == "length" and not cut.stopped:
            finish = "length"
        if finish is not None and not cut.stopped:
            shown += self._filter.flush()
        self._shown += len(shown)
        self.finished = finish is not None
        return TextDelta(shown, self._release(everything=self.finished and not cut.stopped), finish)

    def _push_plain(self, message: Tokens) -> TextDelta:
        """Take tokens without log-probabilities or stop strings: all their text is sent at once."""
        if message.finish is None:
            return TextDelta(self._detokenizer.push_all(message.tokens))
        self.finished = True
        tokens: Sequence[int] = message.tokens
        if message.finish == "stop":
            tokens = list(takewhile(lambda token: token not in self._stop_tokens, tokens))
        text = self._detokenizer.push_all(tokens) + self._detokenizer.flush()
        return TextDelta(text, (), "length" if message.finish == "length" else "stop")

    def _decode(self, message: Tokens) -> str:
        made = ""
        for place, token in enumerate(message.tokens):
            if message.finish == "stop" and token in self._stop_tokens:
                break  # the stop token is not part of the text
            if message.logprobs:
                top = message.alternatives[place] if message.alternatives else []
                self._pending.append(Scored(token, message.logprobs[place], top, self._made))
            new = self._detokenizer.push(token)
            self._made += len(new)
            made += new
        return made + (self._detokenizer.flush() if message.finish is not None else "")

    def _release(self, *, everything: bool) -> list[Scored]:
        """Return the scores whose text has been sent; those of held or cut text stay."""
        ready = [s for s in self._pending if everything or s.offset < self._shown]
        self._pending = self._pending[len(ready) :]
        return ready


def _one_by_one(message: Tokens) -> Iterator[Tokens]:
    """Split a message into single tokens: where an answer ends must not depend on how they were grouped."""
    last = len(message.tokens) - 1
    if last <= 0:
        yield message
        return
    for place, token in enumerate(message.tokens):
        yield Tokens(
            message.id,
            [token],
            message.logprobs[place : place + 1],
            message.alternatives[place : place + 1],
            message.finish if place == last else None,
        )


Messages = Sequence[tuple[int, Tokens | PromptScores | EmbeddingVectors]]
Arrived = list[tuple[int, TextDelta]]
Pieces = AsyncGenerator[Arrived, None]


async def pieces(
    handle: RequestHandle, answers: Sequence[Answer], shown: Sequence[str] | None = None
) -> Pieces:
    """Yield (place, piece) of all messages that arrived together; an empty list after KEEP_ALIVE_S of
    silence.

    `shown` are the prompts to begin with; it is given only if their scores are requested.
    """
    while not all(answer.finished for answer in answers):
        yield list(_deltas(await handle.next(KEEP_ALIVE_S), handle, answers, shown))


def _deltas(
    messages: Messages, handle: RequestHandle, answers: Sequence[Answer], shown: Sequence[str] | None
) -> Iterator[tuple[int, TextDelta]]:
    """Turn messages into pieces; cancel an answer at the engine when a stop string ends it early."""
    for place, message in messages:
        answer = answers[place]
        if answer.finished:
            continue
        if isinstance(message, Tokens):
            yield place, answer.push(message)
            if answer.finished:
                handle.finish(place)
        elif isinstance(message, PromptScores):
            yield place, answer.echo(shown[place] if shown else "", message)


async def whole(
    handle: RequestHandle, answers: Sequence[Answer], shown: Sequence[str] | None = None
) -> list[TextDelta]:
    """Wait for all pieces, and join those of each answer."""
    texts: list[list[str]] = [[] for _ in answers]
    scored: list[list[Scored]] = [[] for _ in answers]
    finish: list[FinishReason | None] = [None for _ in answers]
    while not all(answer.finished for answer in answers):
        for place, piece in _deltas(await handle.next(), handle, answers, shown):
            texts[place].append(piece.text)
            scored[place] += piece.scored
            finish[place] = piece.finish
    return [TextDelta("".join(text), scored[place], finish[place]) for place, text in enumerate(texts)]


def spent(prompt_tokens: int, answers: Sequence[Answer]) -> dict[str, int]:
    """Return the token counts of replies.Usage as a dictionary."""
    written = sum([answer.tokens for answer in answers])
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
    }


def usage(prompt_tokens: int, answers: Sequence[Answer]) -> Usage:
    """Return the same as a model."""
    return Usage.model_validate(spent(prompt_tokens, answers))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
