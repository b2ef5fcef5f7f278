"""One answer in progress: tokens of the engine in, pieces of text out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from windlass.serve.gateway.schemas.replies import FinishReason
from windlass.serve.gateway.text.detokenise import StopFilter
from windlass.serve.gateway.text.tokenise import TextCodec
from windlass.spec.protocol.wire import Alternative, PromptScores, Tokens


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
