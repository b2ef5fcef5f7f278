"""Builds the requests of the API. Pure: settings in, a Request out; settings left out are not sent.

The server knows defaults and ranges, and refuses an unknown setting with the nearest right name;
so nothing is checked here that the server checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from windlass.sdk.effects import Request
from windlass.spec.errors import AskedWrongly

Prompt = str | Sequence[int]
Turns = str | Sequence[Mapping[str, Any]]


class SamplingSettings(TypedDict, total=False):
    """Sampling settings of an answer; all are optional."""

    max_tokens: int | None
    temperature: float | None
    """0 takes the likeliest token; default 1."""
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float] | None
    n: int | None
    """How many answers; streams have one."""
    seed: int | None
    """The same seed, prompt and settings give the same answer."""
    stop: str | Sequence[str] | None
    response_format: Mapping[str, Any] | None
    guided_json: Mapping[str, Any] | None
    guided_regex: str | None
    guided_choice: Sequence[str] | None
    logprobs: int | None
    """Scores of so many likely tokens at each place; not for streams."""
    echo: bool | None
    """Begin with the prompt; for completions."""
    priority: int | None
    user: str | None
    model: str | None
    """Another model than the client's."""


@dataclass(frozen=True)
class Once:
    """The Idempotency-Key of a request; one that the caller gave is always sent."""

    key: str
    is_given: bool


def completion(
    model: str, prompt: Prompt, settings: SamplingSettings, *, once: Once | None = None
) -> Request:
    """Build the request for a completion."""
    body = {"model": model, "prompt": plain(prompt)} | given(settings)
    return _work("/v1/completions", body, once=once)


def chat(model: str, turns: Turns, settings: SamplingSettings, *, once: Once | None = None) -> Request:
    """Build the request for the next turn of a conversation."""
    body = {"model": model, "messages": turns_of(turns)} | given(settings)
    scored = body.pop("logprobs", None)
    if scored is not None:
        body |= {"logprobs": True, "top_logprobs": scored}
    return _work("/v1/chat/completions", body, once=once)


def streamed(request: Request, seed: int) -> Request:
    """Return the same request as a stream, with a seed, so that it can be repeated."""
    body = {"seed": seed} | dict(request.body or {})
    if body.get("n", 1) != 1:
        raise AskedWrongly(
            f"n={body['n']}: a stream has one answer", hint="ask without stream, or several times"
        )
    if "logprobs" in body:
        raise AskedWrongly("logprobs: not for streams", hint="ask for the whole answer: complete(), chat()")
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Request("POST", request.path, body, streams=True, timed=True)


def pinned(request: Request, model: str) -> Request:
    """Return the request for the exact version that began an answer."""
    return Request("POST", request.path, {**(request.body or {}), "model": model}, streams=True, timed=True)


def embeddings(model: str, inputs: Sequence[str] | str, *, once: Once | None = None) -> Request:
    """Build the request for one vector for each text."""
    texts = [inputs] if isinstance(inputs, str) else list(inputs)
    return _work("/v1/embeddings", {"model": model, "input": texts}, once=once)


def tokens(model: str, text: str | None, turns: Turns | None) -> Request:
    """Build the request for the tokens of a text or a conversation."""
    body = {"text": text, "messages": None if turns is None else turns_of(turns)}
    return Request("POST", "/v1/tokenize", {"model": model} | filled(body))


def text(model: str, ids: Sequence[int]) -> Request:
    """Build the request for the text of tokens."""
    return Request("POST", "/v1/detokenize", {"model": model, "tokens": list(ids)})


def dry_run(request: Request) -> Request:
    """Build the dry run of a request."""
    return Request("POST", "/v1/dry-run", {"route": request.path, "body": dict(request.body or {})})


def given(settings: SamplingSettings) -> dict[str, Any]:
    """Collect the settings that were given, except the model."""
    body = filled({key: value for key, value in settings.items() if key != "model"})
    if "stop" in body and not isinstance(body["stop"], str):
        body["stop"] = list(body["stop"])
        if not body["stop"]:
            del body["stop"]
    return body


def filled(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def plain(prompt: Prompt) -> str | list[int]:
    return prompt if isinstance(prompt, str) else list(prompt)


def turns_of(turns: Turns) -> list[dict[str, Any]]:
    """Read a conversation; a bare text is the user's only turn."""
    return [{"role": "user", "content": turns}] if isinstance(turns, str) else [dict(turn) for turn in turns]


def _work(path: str, body: Mapping[str, Any], *, once: Once | None) -> Request:
    if once is not None and once.is_given:
        return Request("POST", path, body, {"idempotency-key": once.key}, timed=True)
    return Request("POST", path, body, timed=True, once=None if once is None else once.key)
