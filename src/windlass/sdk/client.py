"""A small typed client of a Windlass service: completions, chat and embeddings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.sdk.connection import Connection, ServiceFailed

ANSWER_S = 600.0
KEY_VARIABLE = "WINDLASS_KEY"

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Completion:
    """An answer, why it ended ("stop" or "length"), and what it cost."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int


class Client(Connection):
    """Talks to one server; `model` defaults to the one that it serves, `key` to $WINDLASS_KEY."""

    def __init__(
        self, url: str, *, key: str | None = None, model: str | None = None, timeout_s: float = ANSWER_S
    ) -> None:
        super().__init__(url, timeout_s=timeout_s, key=key or os.environ.get(KEY_VARIABLE) or None)
        self._model = model

    def models(self) -> list[str]:
        """Return the ids of the models that are served."""
        return [entry["id"] for entry in self._ask("GET", "/v1/models")["data"]]

    def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Continue a text, or a sequence of token ids."""
        body = _body(max_tokens, temperature, top_p, seed, stop) | {"prompt": _plain(prompt)}
        reply = self._ask("POST", "/v1/completions", self._named(body))
        return _completion(reply, reply["choices"][0]["text"])

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Iterator[str]:
        """Continue a text, piece by piece; leaving the loop stops the server's work."""
        body = _body(max_tokens, temperature, top_p, seed, stop) | {"prompt": _plain(prompt), "stream": True}
        for event in _read_events(self._lines("POST", "/v1/completions", json=self._named(body))):
            for choice in event["choices"]:
                if choice["text"]:
                    yield choice["text"]

    def chat(
        self,
        messages: Sequence[dict[str, str]] | str,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Give the next turn of a conversation; a bare string is the user's only turn."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        body = _body(max_tokens, temperature, top_p, seed, stop) | {"messages": turns}
        reply = self._ask("POST", "/v1/chat/completions", self._named(body))
        return _completion(reply, reply["choices"][0]["message"]["content"])

    def embed(self, inputs: Sequence[str] | str) -> list[list[float]]:
        """Return one unit vector for each text."""
        given = [inputs] if isinstance(inputs, str) else list(inputs)
        reply = self._ask("POST", "/v1/embeddings", self._named({"input": given}))
        return [entry["embedding"] for entry in reply["data"]]

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        if self._model is None:
            self._model = self.models()[0]
        return {"model": self._model} | body


def _read_events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the data of server-sent events; a stream that ends without [DONE] has failed."""
    for line in lines:
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return
        event: dict[str, Any] = json.loads(line[6:])
        if "error" in event:
            raise ServiceFailed(event["error"]["message"])
        yield event
    raise ServiceFailed("the connection broke before the answer was complete")


def _body(
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    stop: Sequence[str],
) -> dict[str, Any]:
    """Gather the settings that were given; the server knows the defaults of the others."""
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    body: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return body | ({"stop": list(stop)} if stop else {})


def _plain(prompt: Prompt) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)


def _completion(reply: dict[str, Any], text: str) -> Completion:
    return Completion(
        text=text,
        finish=reply["choices"][0]["finish_reason"],
        prompt_tokens=reply["usage"]["prompt_tokens"],
        completion_tokens=reply["usage"]["completion_tokens"],
    )
