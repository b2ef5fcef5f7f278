"""Replies of the inference API, typed and frozen. Pure: JSON in, records out.

Notebooks show them as small tables (`tables`), without importing IPython.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from windlass.sdk.failures import ApiFailure, ErrorDetails, failure_from_body
from windlass.sdk.tables import facts_table, preformatted

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Score:
    """A token of an answer, how likely it was, and its rivals."""

    token: str
    logprob: float | None
    rivals: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """One of several answers to a prompt."""

    text: str
    finish: str
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True)
class Completion:
    """An answer, why it ended ("stop" or "length"), and what it cost.

    `model` is the version that answered; `resumed` counts how often a stream was resumed.
    """

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    model: str = ""
    id: str = ""
    request_id: str = ""
    choices: tuple[Choice, ...] = ()
    resumed: int = 0

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        spent = f"{self.prompt_tokens} read, {self.completion_tokens} written"
        rows = {"model": self.model, "tokens": spent, "ended by": self.finish}
        if self.resumed:
            rows["resumed"] = "once" if self.resumed == 1 else f"{self.resumed} times"
        texts = [choice.text for choice in self.choices] or [self.text]
        return "".join(map(preformatted, texts)) + facts_table(rows)


@dataclass(frozen=True)
class ModelEntry:
    """A model or an adapter that is served; an adapter has a parent."""

    id: str
    parent: str | None = None
    context_length: int | None = None
    parameters: int | None = None
    family: str | None = None


@dataclass(frozen=True)
class TokenisedText:
    """The tokens of a text, as the model reads them; iterates over their ids."""

    ids: tuple[int, ...]
    texts: tuple[str, ...]
    context_length: int
    model: str

    @property
    def count(self) -> int:
        return len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)


@dataclass(frozen=True)
class LimitLeft:
    """What is left of a limit, and the maximum that the request would use."""

    scope: str
    kind: str
    left: float
    capacity: float
    needed: float


@dataclass(frozen=True)
class DryRun:
    """The result of a dry run; `failure` is why the request would be refused, and is not raised."""

    fits: bool
    failure: ApiFailure | None = None
    model: str | None = None
    context_length: int | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    first_token_s: float | None = None
    whole_s: float | None = None
    quota: tuple[LimitLeft, ...] = ()


def completion_of(reply: Json, request_id: str) -> Completion:
    """Read the answer to a completion or a chat."""
    choices = tuple(_choice(choice) for choice in reply["choices"])
    return Completion(
        text=choices[0].text,
        finish=choices[0].finish,
        prompt_tokens=reply["usage"]["prompt_tokens"],
        completion_tokens=reply["usage"]["completion_tokens"],
        model=reply["model"],
        id=reply["id"],
        request_id=request_id,
        choices=choices,
    )


def piece_of(chunk: Json) -> tuple[str, str | None]:
    """Read what a chunk of a stream adds, and why it is the last, if it is."""
    for choice in chunk["choices"]:
        added = choice["delta"].get("content") if "delta" in choice else choice["text"]
        return added or "", choice["finish_reason"]
    return "", None


def model_of(reply: Json) -> ModelEntry:
    return ModelEntry(
        id=reply["id"],
        parent=reply.get("parent"),
        context_length=reply.get("context_length"),
        parameters=reply.get("parameters"),
        family=reply.get("family"),
    )


def tokens_of(reply: Json) -> TokenisedText:
    return TokenisedText(
        tuple(reply["tokens"]), tuple(reply["texts"]), int(reply["context_length"]), str(reply["model"])
    )


def dry_run_of(reply: Json, url: str) -> DryRun:
    error = reply.get("error")
    names = ("scope", "kind", "left", "capacity", "needed")
    return DryRun(
        fits=reply["fits"],
        failure=None if error is None else failure_from_body(error, ErrorDetails(status=400), url),
        model=reply.get("model"),
        context_length=reply.get("context_length"),
        prompt_tokens=reply.get("prompt_tokens"),
        max_tokens=reply.get("max_tokens"),
        first_token_s=reply.get("first_token_s"),
        whole_s=reply.get("whole_s"),
        quota=tuple(LimitLeft(*(budget[name] for name in names)) for budget in reply.get("quota", ())),
    )


def _choice(choice: Json) -> Choice:
    said = choice["message"]["content"] if "message" in choice else choice["text"]
    return Choice(said, choice["finish_reason"], _scores(choice.get("logprobs")))


def _scores(logprobs: Json | None) -> tuple[Score, ...]:
    """Read log-probabilities in either of OpenAI's two formats."""
    if logprobs is None:
        return ()
    if "content" in logprobs:
        return tuple(
            Score(
                one["token"],
                one["logprob"],
                {rival["token"]: rival["logprob"] for rival in one["top_logprobs"]},
            )
            for one in logprobs["content"]
        )
    tops = logprobs["top_logprobs"] or [None] * len(logprobs["tokens"])
    scored = zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
    return tuple(Score(token, logprob, rivals or {}) for token, logprob, rivals in scored)
