"""Structured output: the mask of tokens that may come next, step by step.

    request -> tried in a separate process (`trial_worker`) -> compiled here -> Matcher

A grammar that is invalid, too large or too slow is refused with a reason and never stalls or kills the
engine: a grammar that exceeds the trial's limits of time and memory is not compiled here, and a compiled one
bounds its work in every step. Compiled grammars are cached; each request gets a copy, which is cheap. The
compiling thread and the trial process end after a while without requests.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from windlass.serve.engine.grammar.compile_grammar import (
    BadGrammar,
    compile_grammar,
    load_vocabulary,
    reason_of,
)
from windlass.serve.engine.grammar.trial import GrammarTrial
from windlass.spec.protocol.wire import Grammar

KEPT_GRAMMARS = 32
IDLE_S = 60.0


@dataclass(frozen=True)
class GrammarRefused:
    """Why there is no matcher."""

    reason: str


class Matcher:
    """The state of one answer in its grammar.

    After `advance`, an answer that is `finished` can only end. A matcher whose work in a step exceeds
    the limits, or that got a forbidden token, has a `failure` and allows no token.
    """

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher = matcher
        self._words = words

    @property
    def finished(self) -> bool:
        return bool(self._matcher.is_stopped())

    @property
    def failure(self) -> str | None:
        return reason_of(self._matcher) if self._matcher.is_error() else None

    def mask(self) -> NDArray[np.uint32]:
        """Return one bit for every token: whether it may come next. End tokens are included."""
        mask = np.zeros(self._words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            mask[:] = 0
        return mask

    def advance(self, token: int) -> None:
        """Consume the token that was sampled."""
        self._matcher.consume_token(token)

    def resume(self, tokens: Sequence[int]) -> None:
        """Consume tokens that another engine sampled."""
        self._matcher.consume_tokens(list(tokens))

    def accepts(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens may come next in this order; the state does not change."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def rollback(self, tokens: int) -> None:
        """Undo the last tokens."""
        self._matcher.rollback(tokens)

    def copy(self) -> Matcher:
        return Matcher(self._matcher.deep_copy(), self._words)


Outcome = Literal["wait"] | Matcher | GrammarRefused


class Pending:
    """A grammar that is being compiled."""

    def __init__(self, words: int) -> None:
        self._words = words
        self._outcome: LLMatcher | str | None = None

    def poll(self) -> Outcome:
        """Return a new matcher, or why there is none, or "wait"."""
        if self._outcome is None:
            return "wait"
        if isinstance(self._outcome, str):
            return GrammarRefused(self._outcome)
        return Matcher(self._outcome.deep_copy(), self._words)

    @property
    def is_spent(self) -> bool:
        """Whether the automaton, which all its answers extend, has reached its maximum size."""
        if not isinstance(self._outcome, LLMatcher):
            return False
        copy = self._outcome.deep_copy()
        copy.compute_bitmask()
        return bool(copy.is_error())

    def settle(self, outcome: LLMatcher | str) -> None:
        self._outcome = outcome


CompileRequest = tuple[Grammar, Pending, bool]
"""The grammar, where its result goes, and whether another engine has tried it before."""


class Grammars:
    """The grammars of one model. Another thread calls `wake` whenever one is compiled or refused."""

    def __init__(
        self,
        model: Path,
        vocabulary: int,
        stop_tokens: Sequence[int],
        *,
        wake: Callable[[], None] = lambda: None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._words = 0
        self._wake, self._idle_s = wake, idle_s
        self._known: OrderedDict[Grammar, Pending] = OrderedDict()
        self._queue: queue.SimpleQueue[CompileRequest | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._trial = GrammarTrial(model, vocabulary, stop_tokens)
        self._vocabulary: LLTokenizer | str
        try:
            self._vocabulary = load_vocabulary(model, vocabulary, stop_tokens)
            self._words = -(-self._vocabulary.vocab_size // 32)
        except BadGrammar as error:
            self._vocabulary = error.message

    @property
    def trial_process(self) -> int | None:
        """The id of the trial process, if one runs."""
        return self._trial.process

    def request(self, grammar: Grammar, *, tried: bool = False) -> Pending:
        """Start to compile a grammar unless it is cached; `tried` skips the trial: another engine did it."""
        pending = self._known.get(grammar)
        if pending is None or pending.is_spent:
            pending = self._known[grammar] = Pending(self._words)
            self._enqueue(grammar, pending, tried)
        self._known.move_to_end(grammar)
        while len(self._known) > KEPT_GRAMMARS:
            self._known.popitem(last=False)
        return pending

    def close(self) -> None:
        """End the compiling thread and the trial process."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _enqueue(self, grammar: Grammar, pending: Pending, tried: bool) -> None:
        if isinstance(self._vocabulary, str):
            pending.settle(self._vocabulary)
            return
        with self._starting:
            self._queue.put((grammar, pending, tried))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(self._vocabulary,), daemon=True)
                self._thread.start()

    def _serve(self, vocabulary: LLTokenizer) -> None:
        while (request := self._next()) is not None:
            grammar, pending, tried = request
            reason = None if tried else self._trial.why_not(grammar)
            try:
                pending.settle(reason or compile_grammar(vocabulary, grammar))
            except BadGrammar as error:
                pending.settle(error.message)
            self._wake()

    def _next(self) -> CompileRequest | None:
        """Return the next grammar to compile; when idle or closed, end the trial process and return None."""
        try:
            request = self._queue.get(timeout=self._idle_s)
        except queue.Empty:
            request = None
        if request is None:
            with self._starting:
                if not self._queue.empty():  # a request came in the meantime
                    return self._queue.get()
                self._trial.close()
                self._thread = None
        return request
