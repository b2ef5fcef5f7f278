"""Answers of a given form: which tokens may come next, step by step.

    request -> tried in a process of its own (trial_worker.py) -> compiled here -> Matcher

A grammar that is wrong, too large or too slow ends as a reason, never as a stalled or dead engine: what
the trial does not survive within its time and memory is not compiled here, and what is compiled bounds
its own work in every step. Compiled grammars are kept; a request gets a copy, which is cheap. The thread
that waits for all this, and the process, end when nothing was asked for a while.
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
    """Where one answer stands in its grammar.

    After `advance`, an answer that is `finished` can only end. A matcher whose work in a step exceeds
    the limits, or that was given a token it forbids, has a `failure` and allows nothing.
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
        """Return one bit for every token: whether it may come next. Tokens that end are among them."""
        mask = np.zeros(self._words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if self._matcher.is_error():
            mask[:] = 0
        return mask

    def advance(self, token: int) -> None:
        """Take the token that was chosen."""
        self._matcher.consume_token(token)

    def resume(self, tokens: Sequence[int]) -> None:
        """Take tokens that another engine chose."""
        self._matcher.consume_tokens(list(tokens))

    def accepts(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens may follow one after the other; nothing is taken."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def rollback(self, tokens: int) -> None:
        """Take back the last tokens."""
        self._matcher.rollback(tokens)

    def copy(self) -> Matcher:
        return Matcher(self._matcher.deep_copy(), self._words)


Outcome = Literal["wait"] | Matcher | GrammarRefused


class Pending:
    """A grammar on its way."""

    def __init__(self, words: int) -> None:
        self._words = words
        self._outcome: LLMatcher | str | None = None

    def poll(self) -> Outcome:
        """Return a matcher of one's own, or why there is none, or "wait"."""
        if self._outcome is None:
            return "wait"
        if isinstance(self._outcome, str):
            return GrammarRefused(self._outcome)
        return Matcher(self._outcome.deep_copy(), self._words)

    @property
    def is_spent(self) -> bool:
        """Whether the automaton, which all answers extend together, has reached its largest size."""
        if not isinstance(self._outcome, LLMatcher):
            return False
        copy = self._outcome.deep_copy()
        copy.compute_bitmask()
        return bool(copy.is_error())

    def settle(self, outcome: LLMatcher | str) -> None:
        self._outcome = outcome


Asked = tuple[Grammar, Pending, bool]
"""What to compile, for whom, and whether it was tried elsewhere."""


class Grammars:
    """The grammars of one model. `wake` is called, from another thread, whenever one is settled."""

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
        self._asked: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
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
        """The process in which grammars are tried, if there is one."""
        return self._trial.process

    def request(self, grammar: Grammar, *, tried: bool = False) -> Pending:
        """Begin to compile a grammar, unless it is known; one that others have tried does no harm."""
        pending = self._known.get(grammar)
        if pending is None or pending.is_spent:
            pending = self._known[grammar] = Pending(self._words)
            self._ask(grammar, pending, tried)
        self._known.move_to_end(grammar)
        while len(self._known) > KEPT_GRAMMARS:
            self._known.popitem(last=False)
        return pending

    def close(self) -> None:
        """End the thread and the process."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            self._asked.put(None)
            thread.join()

    def _ask(self, grammar: Grammar, pending: Pending, tried: bool) -> None:
        if isinstance(self._vocabulary, str):
            pending.settle(self._vocabulary)
            return
        with self._starting:
            self._asked.put((grammar, pending, tried))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(self._vocabulary,), daemon=True)
                self._thread.start()

    def _serve(self, vocabulary: LLTokenizer) -> None:
        while (asked := self._next()) is not None:
            grammar, pending, tried = asked
            reason = None if tried else self._trial.why_not(grammar)
            try:
                pending.settle(reason or compile_grammar(vocabulary, grammar))
            except BadGrammar as error:
                pending.settle(error.message)
            self._wake()

    def _next(self) -> Asked | None:
        """Return what to compile next; None, with the process ended, when there is no more."""
        try:
            asked = self._asked.get(timeout=self._idle_s)
        except queue.Empty:
            asked = None
        if asked is None:
            with self._starting:
                if not self._asked.empty():  # asked for in the last moment
                    return self._asked.get()
                self._trial.close()
                self._thread = None
        return asked
