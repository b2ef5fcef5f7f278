"""Our messages to vLLM's /v1/completions, and its events back. Pure.

Token ids go in as the prompt; they come back in `token_ids`, and inside log-probabilities as
"token_id:N", because text would not tell two tokens with the same bytes apart.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from windlass.spec.errors import did_you_mean
from windlass.spec.protocol.wire import Alternative, Failed, Finish, Generate, Grammar, PromptScores, Tokens

TOKEN = "token_id:"
DONE = "[DONE]"
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "cancelled"}


class BadVllmReply(Exception):
    """vLLM sent a reply that does not follow its API."""


def refusal(request: Generate, model: str, adapters: list[str], context: int) -> Failed | None:
    """Refuse requests that vLLM would misread, or refuse with another error than our engine."""
    wanted = len(request.tokens) + request.max_tokens
    wrong: tuple[str, str] | None = None
    if not request.tokens:
        wrong = "bad_tokens", "the prompt is empty; there is nothing to continue"
    elif request.max_tokens < 0:
        wrong = "bad_request", f"max_tokens must be at least 0, got {request.max_tokens}"
    elif wanted > context:
        wrong = "context_exceeded", f"prompt and answer make {wanted} tokens, but the context is {context}"
    elif request.model not in ("", model):
        wrong = "unknown_model", f"this engine serves only '{model}'"
    elif request.adapter and request.adapter not in adapters:
        wrong = (
            "unknown_adapter",
            f"no adapter '{request.adapter}'; {did_you_mean(request.adapter, adapters)}",
        )
    return None if wrong is None else Failed(request.id, *wrong)


def body_of(request: Generate, model: str) -> dict[str, Any]:
    """Return the JSON of a completion request; `model` is the base model's name."""
    body: dict[str, Any] = {
        "model": request.adapter or model,
        "prompt": request.tokens,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "repetition_penalty": request.repetition_penalty,
        "seed": request.seed,
        "stop_token_ids": request.stop_tokens,
        # Only the stop tokens of the request end an answer, as with our own engine.
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
        "priority": -request.priority,  # in vLLM, lower goes first
    }
    if request.logprobs >= 0 or request.score_prompt:
        body |= {"logprobs": max(0, request.logprobs), "return_tokens_as_token_ids": True}
    if request.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in request.logit_bias.items()}
    if request.score_prompt:
        body["echo"] = True
    if request.tenant and not request.shared_prefix:
        body["cache_salt"] = request.tenant
    if request.grammar is not None:
        body["structured_outputs"] = _structured(request.grammar)
    return body


def _structured(grammar: Grammar) -> dict[str, Any]:
    match grammar.kind:
        case "json":
            return {"json_object": True}
        case "schema":
            return {"json": json.loads(grammar.text)}
        case "regex":
            return {"regex": grammar.text}
        case "choice":
            return {"choice": json.loads(grammar.text)}


@dataclass
class AnswerStream:
    """One streamed answer: vLLM's events in, our messages out."""

    request: Generate
    finished: bool = False
    _echo_due: bool = field(init=False)

    def __post_init__(self) -> None:
        self._echo_due = self.request.score_prompt

    def receive(self, data: str) -> list[Tokens | PromptScores | Failed]:
        """Translate the data of one event; raise BadVllmReply if it is not an event of vLLM's API."""
        if data == DONE or self.finished:
            return []
        try:
            event = json.loads(data)
            if "error" in event:
                self.finished = True
                return [Failed(self.request.id, "engine_failed", error_text(event))]
            return self._choice(event["choices"][0]) if event["choices"] else []
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise BadVllmReply(f"vLLM sent an event that cannot be read ({type(error).__name__})") from None

    def _choice(self, choice: dict[str, Any]) -> list[Tokens | PromptScores | Failed]:
        if choice.get("token_ids") is None:
            raise BadVllmReply("vLLM sends no token ids; version 0.12 or later is required")
        tokens = _ids(choice["token_ids"])
        scores = _scores(choice.get("logprobs"), max(0, self.request.logprobs))
        messages: list[Tokens | PromptScores | Failed] = []
        if self._echo_due:
            self._echo_due = False
            count = len(self.request.tokens)
            messages.append(_prompt_scores(self.request, scores[:count]))
            scores = scores[count:]
        messages += self._answer(tokens, scores, choice.get("finish_reason"))
        return messages

    def _answer(self, tokens: list[int], scores: list[Score], reason: str | None) -> list[Tokens]:
        request = self.request
        if not request.max_tokens:
            tokens, reason = [], "length"  # vLLM generated one to score the prompt
        if reason is not None and reason not in FINISHES:
            raise ValueError(reason)
        finish = None if reason is None else FINISHES[reason]
        if finish == "stop" and tokens and tokens[-1] in request.stop_tokens:
            tokens = tokens[:-1]
        scores = scores[: len(tokens)] if request.logprobs >= 0 else []
        if request.logprobs >= 0 and len(scores) != len(tokens):
            raise ValueError(len(scores))
        self.finished = finish is not None
        if not tokens and finish is None:
            return []
        logprobs = [-1e9 if score[0] is None else score[0] for score in scores]
        alternatives = [score[1] for score in scores] if request.logprobs > 0 else []
        return [Tokens(request.id, tokens, logprobs, alternatives, finish)]


Score = tuple[float | None, list[Alternative]]


def _ids(given: Any) -> list[int]:
    if not isinstance(given, list) or not all(type(token) is int for token in given):
        raise TypeError
    return given


def _scores(given: dict[str, Any] | None, count: int) -> list[Score]:
    """Return each token's log-probability and the `count` likeliest alternatives."""
    if given is None:
        return []
    tops = given.get("top_logprobs") or [None] * len(given["token_logprobs"])
    return [
        (None if own is None else float(own), _rivals(top or {}, count))
        for own, top in zip(given["token_logprobs"], tops, strict=True)
    ]


def _rivals(top: dict[str, float], count: int) -> list[Alternative]:
    found = [Alternative(int(name.removeprefix(TOKEN)), float(logprob)) for name, logprob in top.items()]
    return sorted(found, key=lambda alternative: -alternative.logprob)[:count]


def _prompt_scores(request: Generate, scores: list[Score]) -> PromptScores:
    """Return the scores of the prompt; its first token follows nothing and has none."""
    if len(scores) != len(request.tokens):
        raise ValueError(len(scores))
    logprobs = [-1e9 if score[0] is None else score[0] for score in scores[1:]]
    alternatives = [score[1] for score in scores[1:]] if request.logprobs > 0 else []
    return PromptScores(request.id, logprobs, alternatives)


def error_text(answer: Any) -> str:
    """Return the message of a vLLM error; its place in the body depends on the version."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else error
    return f"vLLM refused: {message}"[:500]
