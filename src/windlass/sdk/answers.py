"""The calls of the inference API, as pure generators; `client` turns them into methods.

A request for a whole answer carries an Idempotency-Key, so that an answer lost on its way back is not
computed twice. A request for a stream carries a seed, so that a broken stream can be requested again and
resumed (`delivery`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

from windlass.sdk import messages
from windlass.sdk.delivery import Delivery
from windlass.sdk.effects import Call, Flow, Request, close, draw, give
from windlass.sdk.events import EventReader
from windlass.sdk.exchange import Attempt, HttpReply, RequestRunner, understood
from windlass.sdk.failures import ApiFailure, ErrorDetails, ServiceFailed, Unreachable, failure_from_body
from windlass.sdk.messages import Once, Prompt, SamplingSettings, Turns
from windlass.sdk.replies import (
    Completion,
    DryRun,
    ModelEntry,
    TokenisedText,
    completion_of,
    dry_run_of,
    model_of,
    piece_of,
    tokens_of,
)
from windlass.spec.errors import AskedWrongly

SEED_BITS = 31
KEY_BITS = 128
DONE = "[DONE]"
ELSEWHERE = frozenset({"model_not_found"})
"""The version that began an answer may be gone from one site and still be at another."""

Vectors = list[list[float]]


@dataclass
class _Answering:
    """A streamed answer, over all its connections."""

    delivery: Delivery = field(default_factory=Delivery)
    finish: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    model: str = ""
    id: str = ""

    def take(self, chunk: dict[str, Any]) -> str:
        """Read a chunk; return the text that is new in it."""
        self.model, self.id = chunk["model"], self.id or chunk["id"]
        self.usage = chunk.get("usage") or self.usage
        added, finish = piece_of(chunk)
        self.finish = finish or self.finish
        return self.delivery.push(added)

    def result(self, request_id: str) -> Completion:
        return Completion(
            text=self.delivery.text,
            finish=self.finish,
            prompt_tokens=self.usage.get("prompt_tokens", 0),
            completion_tokens=self.usage.get("completion_tokens", 0),
            model=self.model,
            id=self.id,
            request_id=request_id,
            resumed=self.delivery.resumed,
        )


class InferenceCalls:
    """The calls of a service; without `model` the first served one is used."""

    def __init__(self, exchange: RequestRunner, *, model: str | None, deadline: float | None) -> None:
        self.exchange = exchange
        self._model = model
        self._deadline = deadline

    def models(self, *, deadline: float | None = None) -> Call[list[str]]:
        """Return the ids of the models that are served.

        client.models()                            # ["poems@1"]
        """
        found = yield from self.catalogue(deadline=deadline)
        return [model.id for model in found]

    def catalogue(self, *, deadline: float | None = None) -> Call[list[ModelEntry]]:
        """Return the models that are served, with their context, size and family.

        client.catalogue()[0].context_length       # 512
        """
        attempt = yield from self._attempt(deadline)
        return (yield from self._catalogue(attempt))

    def complete(
        self,
        prompt: Prompt,
        *,
        deadline: float | None = None,
        idempotency_key: str | None = None,
        **settings: Unpack[SamplingSettings],
    ) -> Call[Completion]:
        """Continue a text, or a sequence of token ids.

        client.complete("Once upon", max_tokens=20, temperature=0).text
        """
        attempt, once, model = yield from self._begin(deadline, idempotency_key, settings)
        answer = yield from self.exchange.ask(
            messages.completion(model, prompt, settings, once=once), attempt
        )
        return answer.read(partial(completion_of, request_id=answer.request_id))

    def chat(
        self,
        turns: Turns,
        *,
        deadline: float | None = None,
        idempotency_key: str | None = None,
        **settings: Unpack[SamplingSettings],
    ) -> Call[Completion]:
        """Give the next turn of a conversation; a bare string is the user's only turn.

        client.chat([{"role": "user", "content": "Hello"}], max_tokens=20).text
        """
        attempt, once, model = yield from self._begin(deadline, idempotency_key, settings)
        answer = yield from self.exchange.ask(messages.chat(model, turns, settings, once=once), attempt)
        return answer.read(partial(completion_of, request_id=answer.request_id))

    def stream(
        self, prompt: Prompt, *, deadline: float | None = None, **settings: Unpack[SamplingSettings]
    ) -> Flow[str, Completion]:
        """Continue a text, piece by piece; leaving the loop stops the server's work.

        for piece in client.stream("Once upon", max_tokens=20):
            print(piece, end="")
        """
        check_stream(settings)
        return Flow(self._stream(deadline, settings, prompt=prompt))

    def stream_chat(
        self, turns: Turns, *, deadline: float | None = None, **settings: Unpack[SamplingSettings]
    ) -> Flow[str, Completion]:
        """Give the next turn of a conversation, piece by piece."""
        check_stream(settings)
        return Flow(self._stream(deadline, settings, turns=turns))

    def embed(
        self,
        inputs: Sequence[str] | str,
        *,
        deadline: float | None = None,
        idempotency_key: str | None = None,
        model: str | None = None,
    ) -> Call[Vectors]:
        """Return one unit vector for each text.

        client.embed(["cat", "dog"])               # [[0.1, ...], [0.2, ...]]
        """
        attempt, once, name = yield from self._begin(deadline, idempotency_key, {"model": model})
        answer = yield from self.exchange.ask(messages.embeddings(name, inputs, once=once), attempt)
        return answer.read(lambda reply: [list(entry["embedding"]) for entry in reply["data"]])

    def tokenize(
        self,
        text: str | None = None,
        *,
        turns: Turns | None = None,
        model: str | None = None,
        deadline: float | None = None,
    ) -> Call[TokenisedText]:
        """Return the tokens of a text, or of a conversation, as the model would read them.

        client.tokenize("Once upon").count         # 2
        """
        attempt = yield from self._attempt(deadline)
        name = yield from self._named(model, attempt)
        answer = yield from self.exchange.ask(messages.tokens(name, text, turns), attempt)
        return answer.read(tokens_of)

    def detokenize(
        self, tokens: Iterable[int], *, model: str | None = None, deadline: float | None = None
    ) -> Call[str]:
        """Return the text of token ids.

        client.detokenize(client.tokenize("Once upon"))       # "Once upon"
        """
        attempt = yield from self._attempt(deadline)
        name = yield from self._named(model, attempt)
        answer = yield from self.exchange.ask(messages.text(name, list(tokens)), attempt)
        return answer.read(lambda reply: str(reply["text"]))

    def dry_run(
        self,
        prompt: Prompt | None = None,
        *,
        turns: Turns | None = None,
        inputs: Sequence[str] | str | None = None,
        deadline: float | None = None,
        **settings: Unpack[SamplingSettings],
    ) -> Call[DryRun]:
        """Check a completion, a chat (`turns`) or an embedding (`inputs`) without computing it.

        client.dry_run("Once upon", max_tokens=50).whole_s    # about how long, if that is known yet
        """
        attempt = yield from self._attempt(deadline)
        name = yield from self._named(settings.get("model"), attempt)
        request = _tried(name, settings, prompt, turns, inputs)
        answer = yield from self.exchange.ask(messages.dry_run(request), attempt)
        return answer.read(partial(dry_run_of, url=answer.site.url))

    def _stream(
        self,
        deadline: float | None,
        settings: SamplingSettings,
        *,
        prompt: Prompt | None = None,
        turns: Turns | None = None,
    ) -> Call[Completion]:
        """Read a stream; when it breaks, request it again and continue behind the delivered text."""
        attempt = yield from self._attempt(deadline)
        name = yield from self._named(settings.get("model"), attempt)
        seed = yield from draw(SEED_BITS)
        request = messages.streamed(_tried(name, settings, prompt, turns, None), seed)
        answering = _Answering()
        while True:
            answer = yield from self.exchange.ask(request, attempt)
            failure = yield from self._read(answer, answering, attempt)
            yield from close()
            if failure is None:
                answering.delivery.end()
                return answering.result(answer.request_id)
            if answering.model:
                request = messages.pinned(request, answering.model)
                attempt.elsewhere = ELSEWHERE
            answering.delivery.again()
            yield from self.exchange.failed(request, attempt, failure)

    def _read(self, answer: HttpReply, answering: _Answering, attempt: Attempt) -> Call[ApiFailure | None]:
        """Deliver the new text of one connection; return why it broke, None at the end of the answer."""
        reader = EventReader()
        while True:
            received = yield from self.exchange.more(attempt)
            if isinstance(received, ApiFailure):
                return received
            if not received:
                return Unreachable(
                    f"{answer.site.url}: the connection broke before the answer was complete", sent=True
                )
            for event in reader.push(received):
                if event.data == DONE:
                    return None
                new = understood(answer.head.url, partial(_taken, answering, answer), event.data)
                if isinstance(new, ApiFailure):
                    return new
                if new:
                    attempt.progressed()
                    yield from give(new)

    def _begin(
        self, deadline: float | None, idempotency_key: str | None, settings: SamplingSettings
    ) -> Call[tuple[Attempt, Once, str]]:
        attempt = yield from self._attempt(deadline)
        model = yield from self._named(settings.get("model"), attempt)
        drawn = yield from draw(KEY_BITS)
        given = idempotency_key is not None
        return attempt, Once(idempotency_key or f"windlass-{drawn:032x}", given), model

    def _attempt(self, deadline: float | None) -> Call[Attempt]:
        return (yield from self.exchange.begin(self._deadline if deadline is None else deadline))

    def _named(self, model: str | None, attempt: Attempt) -> Call[str]:
        """Return the model to use: the given one, the client's, or the first that is served."""
        if model is not None:
            return model
        if self._model is None:
            found = yield from self._catalogue(attempt)
            if not found:
                raise ServiceFailed("no model is served there")
            self._model = found[0].id
        return self._model

    def _catalogue(self, attempt: Attempt) -> Call[list[ModelEntry]]:
        answer = yield from self.exchange.ask(Request("GET", "/v1/models"), attempt)
        attempt.progressed()
        return answer.read(lambda reply: [model_of(entry) for entry in reply["data"]])


def check_stream(settings: SamplingSettings) -> None:
    """Raise AskedWrongly for settings that a stream cannot have, before anything is sent."""
    messages.streamed(messages.completion("", "", settings), 0)


def _tried(
    model: str,
    settings: SamplingSettings,
    prompt: Prompt | None,
    turns: Turns | None,
    inputs: Sequence[str] | str | None,
) -> Request:
    """Build the request from the one argument that is given."""
    if sum(given is not None for given in (prompt, turns, inputs)) != 1:
        raise AskedWrongly("give one of: a prompt, turns, inputs")
    if prompt is not None:
        return messages.completion(model, prompt, settings)
    if turns is not None:
        return messages.chat(model, turns, settings)
    return messages.embeddings(model, inputs or "")


def _taken(answering: _Answering, answer: HttpReply, chunk: dict[str, Any]) -> str | ApiFailure:
    """Read an event of a stream: return its new text, or the failure that it carries."""
    if "error" in chunk:
        return failure_from_body(chunk["error"], ErrorDetails(request_id=answer.request_id), answer.site.url)
    return answering.take(chunk)
