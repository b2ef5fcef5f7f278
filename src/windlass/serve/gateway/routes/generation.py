"""What completions and chat share: from sampling settings to the engine's work, from tokens to pieces.

prompts -> fit (context) -> build (Generate messages) -> ticket -> Answer.push -> Piece
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
"""Seeds of sibling answers are far apart; the first answer's seed is the one that was asked for."""


def fit(prompt_tokens: int, asked: int | None, *, default: int, context: int, param: str) -> int:
    """Return how many tokens may be written; what was asked for is granted in full or refused."""
    wanted = asked if asked is not None else max(1, min(default, context - prompt_tokens))
    if prompt_tokens + wanted > context:
        room = context - prompt_tokens
        raise ApiError(
            "context_length_exceeded",
            f"the prompt has {prompt_tokens} tokens and {wanted} more are asked for, "
            f"{prompt_tokens + wanted} together; the model's context is {context}",
            param=param,
            allowed={"type": "integer", "minimum": 1, "maximum": room} if room > 0 else None,
        )
    return wanted


def build(
    desk: ModelEndpoint,
    ask: Sampling,
    prompt: list[int],
    *,
    id_: str,
    max_tokens: int,
    tenant: str,
    logprobs: int,
    score_prompt: bool = False,
) -> list[Generate]:
    """Return one message for each of the n answers to a prompt."""
    seed = ask.seed if ask.seed is not None else secrets.randbits(63)
    grammar = ask.grammar
    if grammar is not None and isinstance(desk.served.text, NumberText):
        raise ApiError("no_tokenizer", "this model has no tokenizer, and structured output needs one")
    return [
        Generate(
            id=f"{id_}-{number}",
            tokens=prompt,
            max_tokens=max_tokens,
            temperature=_or(ask.temperature, 1.0),
            top_k=max(0, ask.top_k or 0),
            top_p=_or(ask.top_p, 1.0),
            min_p=_or(ask.min_p, 0.0),
            presence_penalty=_or(ask.presence_penalty, 0.0),
            frequency_penalty=_or(ask.frequency_penalty, 0.0),
            repetition_penalty=_or(ask.repetition_penalty, 1.0),
            seed=(seed + number * SEED_STEP) % (1 << 63),
            logprobs=logprobs,
            stop_tokens=desk.stop_tokens,
            logit_bias=ask.logit_bias,
            score_prompt=score_prompt,
            model=desk.model,
            adapter=desk.adapter,
            tenant=tenant,
            priority=ask.priority or 0,
            grammar=grammar,
        )
        for number in range(ask.n or 1)
    ]


@dataclass(frozen=True)
class Scored:
    """A token with its log-probability; `offset` is where its text begins in the answer."""

    token: int
    logprob: float | None
    alternatives: Sequence[Alternative]
    offset: int


class TextDelta(NamedTuple):
    """What an answer gains by one message."""

    text: str
    scored: Sequence[Scored] = ()
    finish: FinishReason | None = None


class Answer:
    """One answer in the making: tokens in, pieces of text out."""

    def __init__(
        self, text: TextCodec, stops: Sequence[str], stop_tokens: Sequence[int], *, prompt: Sequence[int] = ()
    ) -> None:
        self._text = text
        self._detokenizer = text.detokenizer()
        self._filter = StopFilter(stops)
        self._is_plain = not stops
        """Whether text is shown as it comes, so that nobody needs to know where it stands."""
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
            rivals = alternatives[number] if number < len(alternatives) else []
            scored.append(Scored(token, logprobs[number], rivals, min(place, offset)))
            place += len(detokenizer.push(token))
        return TextDelta(shown, scored)

    def push(self, message: Tokens) -> TextDelta:
        """Take the next tokens; return the text that they allow to be shown."""
        if self._is_plain and not message.logprobs and not self._pending:
            self.tokens += len(message.tokens)
            return self._push_plain(message)
        whole = TextDelta("")
        for one in _one_by_one(message):
            piece = self._push_one(one)
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
        """Take tokens of which nothing but the text is wanted, and of which no text can be held back."""
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
                break  # the end of the answer is no part of its text
            if message.logprobs:
                rivals = message.alternatives[place] if message.alternatives else []
                self._pending.append(Scored(token, message.logprobs[place], rivals, self._made))
            new = self._detokenizer.push(token)
            self._made += len(new)
            made += new
        return made + (self._detokenizer.flush() if message.finish is not None else "")

    def _release(self, *, everything: bool) -> list[Scored]:
        """Let go of the scores whose text is shown; those of held or cut text stay."""
        ready = [s for s in self._pending if everything or s.offset < self._shown]
        self._pending = self._pending[len(ready) :]
        return ready


def _one_by_one(message: Tokens) -> Iterator[Tokens]:
    """Take tokens apart that came together: where an answer ends must not depend on how they came."""
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
    ticket: RequestHandle, answers: Sequence[Answer], shown: Sequence[str] | None = None
) -> Pieces:
    """Yield (place, piece) of all that arrived together, and nothing when nothing has come for a while.

    `shown` are the prompts to begin with; it is given only when their scores were asked for.
    """
    while not all(answer.finished for answer in answers):
        yield list(_taken(await ticket.next(KEEP_ALIVE_S), ticket, answers, shown))


def _taken(
    messages: Messages, ticket: RequestHandle, answers: Sequence[Answer], shown: Sequence[str] | None
) -> Iterator[tuple[int, TextDelta]]:
    """Turn messages into pieces; the engine is told of an answer that has ended before its time."""
    for place, message in messages:
        answer = answers[place]
        if answer.finished:
            continue
        if isinstance(message, Tokens):
            yield place, answer.push(message)
            if answer.finished:
                ticket.finish(place)
        elif isinstance(message, PromptScores):
            yield place, answer.echo(shown[place] if shown else "", message)


async def whole(
    ticket: RequestHandle, answers: Sequence[Answer], shown: Sequence[str] | None = None
) -> list[TextDelta]:
    """Wait for all pieces, and join those of each answer."""
    texts: list[list[str]] = [[] for _ in answers]
    scored: list[list[Scored]] = [[] for _ in answers]
    finish: list[FinishReason | None] = [None for _ in answers]
    while not all(answer.finished for answer in answers):
        for place, piece in _taken(await ticket.next(), ticket, answers, shown):
            texts[place].append(piece.text)
            scored[place] += piece.scored
            finish[place] = piece.finish
    return [TextDelta("".join(text), scored[place], finish[place]) for place, text in enumerate(texts)]


def spent(prompt_tokens: int, answers: Sequence[Answer]) -> dict[str, int]:
    """Count what was read and written, as replies.Usage has it."""
    written = sum([answer.tokens for answer in answers])
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": written,
        "total_tokens": prompt_tokens + written,
    }


def usage(prompt_tokens: int, answers: Sequence[Answer]) -> Usage:
    """Return the same as a part of a reply."""
    return Usage.model_validate(spent(prompt_tokens, answers))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
