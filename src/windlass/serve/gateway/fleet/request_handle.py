"""The handle of one HTTP request at the fleet, and the state that another replica needs to continue it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from windlass.http.errors import ApiError
from windlass.spec.protocol.wire import EmbeddingVectors, Generate, PromptScores, Tokens, Work

AnswerMessage = Tokens | PromptScores | EmbeddingVectors
"""What an engine sends about an answer."""


@dataclass(eq=False, slots=True)
class EngineTask:
    """One answer in progress, with everything that another replica needs to continue it."""

    request: Work
    handle: RequestHandle
    place: int
    submitted_at: float
    fallbacks: list[str] = field(default_factory=list)
    """Other versions with the same vocabulary, which may answer if this one cannot."""
    shadow: bool = False
    sent: list[int] = field(default_factory=list)
    scored: bool = False
    """Whether the scores of the prompt have been sent."""
    attempts: int = 0
    gained: bool = False
    """Whether the current attempt has produced anything."""
    fruitless: int = 0
    """How many engines in a row ended before they produced anything for it."""
    placed_at: float = 0.0
    grammar_tried: bool = False
    idle_moves: int = 0
    """How often in a row it changed its replica without progress."""
    avoid: set[str] = field(default_factory=set)
    """Replicas that failed it."""
    replica: str = ""
    waited_ticks: int = 0
    """How long it has waited for a replica, in ticks of the fleet."""
    first_at: float = 0.0
    last_at: float = 0.0
    ended: bool = False

    @property
    def version(self) -> str:
        return self.request.model

    @property
    def id(self) -> str:
        """The id of the current attempt; late messages about earlier attempts have other ids."""
        return f"{self.request.id}~{self.attempts}" if self.attempts > 1 else self.request.id

    @property
    def affinity_tokens(self) -> Sequence[int]:
        return self.request.tokens if isinstance(self.request, Generate) else self.request.inputs[0]

    def order(self, model: str) -> Work:
        """Return the request for the next replica: the rest of the answer."""
        request = self.request
        if isinstance(request, Generate) and self.grammar_tried:
            request = msgspec.structs.replace(request, grammar_tried=True)
        if isinstance(request, Generate) and (self.sent or self.scored):
            return msgspec.structs.replace(
                request,
                id=self.id,
                model=model,
                tokens=request.tokens + self.sent,
                max_tokens=request.max_tokens - len(self.sent),
                resumed_tokens=request.resumed_tokens + len(self.sent),
                score_prompt=request.score_prompt and not self.scored,
            )
        return msgspec.structs.replace(request, id=self.id, model=model)

    def take(self, message: AnswerMessage, now: float) -> None:
        """Note a message of the engine, and pass it to the handle."""
        self.gained, self.fruitless, self.idle_moves = True, 0, 0
        if isinstance(message, Tokens):
            self.sent += message.tokens
            self.first_at, self.last_at = self.first_at or now, now
        elif isinstance(message, PromptScores):
            self.scored = True
        self.handle.put(self.place, message)


class RequestHandle:
    """The messages of all answers to one HTTP request, in order of arrival.

    The queue can hold the whole answer (max_tokens bounds it), so a slow client never delays the messages of
    other clients. Closing the handle cancels what is unfinished.
    """

    def __init__(self, forget: Callable[[EngineTask], None]) -> None:
        self.tokens = 0
        """Tokens that the engines have generated."""
        self.queued_s = 0.0
        """How long the first answer waited for a slot of its engine."""
        self.reason = ""
        """The finish reason of the last finished answer."""
        self.moves: list[tuple[float, str, dict[str, str]]] = []
        """Changes of replica: time, "retry" (before the first token) or "failover", and attributes."""
        self.tasks: list[EngineTask] = []
        self._at_first: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._forget = forget
        self._arrived: list[tuple[int, AnswerMessage]] = []
        self._error: ApiError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def served_by(self) -> str:
        """The version that answers; after a fall-back, the standby."""
        return self.tasks[0].version

    @property
    def replica(self) -> str:
        return self.tasks[0].replica

    async def next(self, patience_s: float | None = None) -> list[tuple[int, AnswerMessage]]:
        """Return all messages that have arrived, with the index of their answer; none after the timeout."""
        if not self._arrived and self._error is None:
            await self._wait(patience_s)
        if not self._arrived and self._error is not None:
            raise self._error
        arrived, self._arrived = self._arrived, []
        return arrived

    def at_first(self, call: Callable[[], None]) -> None:
        """Call a function once, at the first token of any answer."""
        self._at_first.append(call)

    def at_end(self, call: Callable[[], None]) -> None:
        """Call a function once, when the handle is closed."""
        self._at_end.append(call)

    def put(self, place: int, message: AnswerMessage) -> None:
        if isinstance(message, Tokens):
            self.tokens += len(message.tokens)
            self.queued_s = self.queued_s or message.queued_s
            self.reason = message.finish or self.reason
            while self._at_first and message.tokens:
                self._at_first.pop()()
        self._arrived.append((place, message))
        self._wake()

    def fail(self, error: ApiError) -> None:
        self._error = self._error or error
        self._wake()

    def finish(self, place: int) -> None:
        """Cancel one answer."""
        self._forget(self.tasks[place])

    def close(self) -> None:
        for task in self.tasks:
            self._forget(task)
        while self._at_end:
            self._at_end.pop()()

    async def _wait(self, patience_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = None if patience_s is None else loop.call_later(patience_s, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
