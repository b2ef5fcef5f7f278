"""What every route works with: the models that are served, and the way to the engine.

A request names a model, "NAME" or "NAME@VERSION", or an adapter of one, "NAME:ADAPTER" or just "ADAPTER".
The desk for that name knows the vocabulary, the limits and what to tell the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from windlass.serve.gateway.admission import Admission, Unlimited, Wish
from windlass.serve.gateway.caller import Caller
from windlass.serve.gateway.engine_link import EngineLink, Ticket
from windlass.serve.gateway.errors import ApiError, shown
from windlass.serve.gateway.metrics import Metrics
from windlass.serve.gateway.served import Served
from windlass.spec.errors import did_you_mean
from windlass.spec.wire import Embed, Generate, Offered

ENCODERS = {"bert"}
LONG_TEXT_CHARS = 8192
"""Longer texts are tokenised in a thread, so that other streams go on."""


@dataclass(frozen=True)
class Service:
    """All models, and what they share."""

    models: tuple[Served, ...]
    link: EngineLink
    metrics: Metrics
    admission: Admission = field(default_factory=Unlimited)

    async def ask(self, caller: Caller, requests: Sequence[Generate | Embed]) -> Ticket:
        """Ask the engine, if there is room; whoever asks closes the ticket, whatever happens."""
        wish = wish_of(requests)
        grant = await self.admission.admit(caller, wish)
        try:
            ticket = self.link.ask(requests)
        except ApiError:
            grant.settle(0)
            raise
        figures = self.metrics.model(wish.model or self.link.ready.model)
        figures.prompt_tokens.inc(wish.prompt_tokens)
        ticket.at_first(grant.began)
        ticket.at_end(lambda: grant.settle(wish.prompt_tokens + ticket.tokens))
        return ticket

    def desks(self) -> list[Desk]:
        """Return a desk for every model, each followed by those of its adapters."""
        return [Desk(self, served, adapter) for served in self.models for adapter in ("", *served.adapters)]

    def desk(self, name: str) -> Desk:
        """Return the desk for a name; refuse a name that nothing here has."""
        for served in self.models:
            if name in served.names:
                return Desk(self, served)
        base, colon, adapter = name.rpartition(":")
        for served in self.models:
            if adapter in served.adapters and (not colon or base in served.names):
                return Desk(self, served, adapter)
            if colon and base in served.names:
                raise _no_adapter(served, adapter)
        raise self._no_model(name)

    def _no_model(self, name: str) -> ApiError:
        known = [desk.id for desk in self.desks()]
        there = f"'{known[0]}' is" if len(known) == 1 else did_you_mean(name[:100], known)
        message = f"model {shown(name)} is not served here; {there}"
        return ApiError("model_not_found", message, param="model", allowed={"enum": known[:64]})


def wish_of(requests: Sequence[Generate | Embed]) -> Wish:
    """Add up what requests for one model ask for; answers to the same prompt read it once."""
    prompts = {id(r.tokens): len(r.tokens) for r in requests if isinstance(r, Generate)}
    inputs = sum(len(tokens) for r in requests if isinstance(r, Embed) for tokens in r.inputs)
    return Wish(
        model=requests[0].model,
        answers=len(requests),
        prompt_tokens=sum(prompts.values()) + inputs,
        most_tokens=sum(r.most_tokens for r in requests if isinstance(r, Generate)),
        priority=requests[0].priority,
        alternatives=max((r.logprobs for r in requests if isinstance(r, Generate)), default=0),
    )


def _no_adapter(served: Served, adapter: str) -> ApiError:
    there = did_you_mean(adapter[:100], list(served.adapters)) if served.adapters else "it is served alone"
    return ApiError(
        "model_not_found", f"'{served.id}' has no adapter {shown(adapter)}; {there}", param="model"
    )


@dataclass(frozen=True)
class Desk:
    """Where requests for one model, with or without an adapter, are taken."""

    service: Service
    served: Served
    adapter: str = ""

    @property
    def id(self) -> str:
        return f"{self.served.id}:{self.adapter}" if self.adapter else self.served.id

    @property
    def link(self) -> EngineLink:
        return self.service.link

    @property
    def metrics(self) -> Metrics:
        return self.service.metrics

    @property
    def model(self) -> str:
        """Return the name by which the engine knows the model; the first needs none."""
        return "" if self.served is self.service.models[0] else self.served.id

    @property
    def offered(self) -> Offered:
        """Return what the engine said about the model; there must be an engine."""
        return self.link.ready.about(self.served.id)

    @property
    def writer(self) -> Offered:
        """Return what the engine said about the model, if it can write text."""
        offered = self.offered
        if offered.family in ENCODERS:
            raise ApiError(
                "wrong_model_kind",
                f"'{self.id}' is an encoder ({offered.family}); it makes embeddings and writes no text",
                param="model",
            )
        return offered

    @property
    def stop_tokens(self) -> list[int]:
        """Return the tokens that end an answer; a configuration may name some that the model lacks."""
        return [token for token in self.served.stop_tokens if token < self.offered.vocabulary]

    async def encode(self, prompt: str | list[int], *, special: bool, param: str) -> list[int]:
        """Return the token ids of a prompt, which are all known to the model."""
        if isinstance(prompt, str):
            return await self._tokenise(prompt, special, param)
        check_tokens(prompt, self.offered.vocabulary, param)
        return prompt

    async def _tokenise(self, prompt: str, special: bool, param: str) -> list[int]:
        encode, context = self.served.text.encode, self.offered.context
        if len(prompt) <= LONG_TEXT_CHARS:
            tokens = encode(prompt, special=special, context=context)
        else:
            tokens = await asyncio.to_thread(encode, prompt, special=special, context=context)
        if not tokens:
            raise ApiError(
                "invalid_value", f"'{param}' has no tokens; there is nothing to continue", param=param
            )
        return tokens


def check_tokens(tokens: Sequence[int], vocabulary: int, param: str) -> None:
    """Refuse ids that the model does not have."""
    worst = max(tokens, default=0)
    if worst >= vocabulary:
        raise ApiError(
            "invalid_value",
            f"'{param}' has token {worst}; the vocabulary ends at {vocabulary - 1}",
            param=param,
        )
