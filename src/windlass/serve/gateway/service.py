"""What every route works with: the models that are served, what their names mean, and the way to the engines.

A request names a model, "NAME" or "NAME@VERSION", or an adapter of one, "NAME:ADAPTER" or just "ADAPTER".
A bare name is a route: versions have parts of it. The desk for a name knows the vocabulary, the limits and
what to tell the engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

from windlass.http.deadlines import Deadline
from windlass.http.errors import ApiError, shown
from windlass.serve.gateway.caller import Caller
from windlass.serve.gateway.control_client import Upstream
from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.serve.gateway.fleet.request_handle import RequestHandle
from windlass.serve.gateway.fleet.routing import choose_version, place_of
from windlass.serve.gateway.fleet.supervisor_client import SupervisorClient
from windlass.serve.gateway.limits.request_cost import Admission, Grant, RequestCost, Unlimited
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.gateway.observe.prompt_log import PromptLog
from windlass.serve.gateway.observe.request_trace import RequestTrace
from windlass.serve.gateway.text.served_model import ServedModel, load_routed
from windlass.spec.errors import WindlassError, did_you_mean
from windlass.spec.protocol.routing import Route, RoutedModel, Routing
from windlass.spec.protocol.wire import Embed, Generate, ModelInfo, Work
from windlass.spec.serve import Price
from windlass.store.database import Database

ENCODERS = {"bert"}
NO_SHADOW, SHORT_ANSWERS = 1, 2
"""Levels of the brown-out ladder (limits/brown_out.py) from which the service does less of these."""
OPENING = 256
"""Characters, or tokens, by which a conversation is told from others."""
NO_ROOM = frozenset({"queue_full", "overloaded", "deadline_unreachable"})
"""Refusals that more replicas would help against, as against a caller's own limits they would not."""
LONG_TEXT_CHARS = 8192
"""Longer texts are tokenised in a thread, so that other streams go on."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class GatewayService:
    """All models, and what they share."""

    models: tuple[ServedModel, ...]
    fleet: ReplicaFleet
    metrics: Metrics
    admission: Admission = field(default_factory=Unlimited)
    database: Database | None = None
    """The service's state; a gateway of its own has none."""
    prompts: PromptLog | None = None
    """Where prompts are kept, if anywhere."""
    deadline_s: float | None = None
    """The longest that any answer may take."""
    price: Price | None = None
    """What tokens cost, where somebody said so."""
    routes: dict[str, Route] = field(default_factory=dict)
    brownout: int = 0
    steering: Path | None = None
    """Where the supervisor is, if there is one, and what it calls this gateway."""
    name: str = "gateway"
    control: Upstream | None = None
    """The control process, where the service has one."""

    def __post_init__(self) -> None:
        # Of all that ever were: a version may leave while a request for it is made ready.
        self._languages = {served.id: served.language for served in self.models}
        self.routes = self.routes or default_routes(self.models)

    async def run(self) -> None:
        """Keep in touch with the engines, and with the supervisor if there is one."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fleet.run())
            group.create_task(self.admission.run())
            if self.steering is not None:
                group.create_task(SupervisorClient(self.steering, self.name, self.fleet, self.apply).run())

    async def apply(self, routing: Routing) -> None:
        """Take a routing table: read models that are new, then send requests as it says.

        A version whose files cannot be read takes no part; the supervisor is told.
        """
        known = {served.id: served for served in self.models}
        models = []
        for model in routing.models:
            served = known.get(model.id) or await self._read(model)
            if served is not None:
                models.append(replace(served, names=frozenset({model.id, *model.names})))
        names = {served.id for served in models}
        self._languages |= {served.id: served.language for served in models}
        self.models, self.brownout = tuple(models), routing.brownout
        self.routes = {bare: _readable(route, names) for bare, route in routing.routes.items()}
        self.fleet.apply(routing)

    async def ask(
        self, caller: Caller, requests: Sequence[Work], deadline: Deadline | None, journey: RequestTrace
    ) -> RequestHandle:
        """Ask the engines, if there is room; whoever asks closes the ticket, whatever happens."""
        journey.prepare()
        if caller.shared_prefix:
            requests = sharing(requests)
        wish = request_cost(requests, deadline)
        grant = await self._admit(caller, wish)
        try:
            ticket = self.fleet.ask(requests, self._fallbacks(requests[0]))
        except ApiError:
            grant.settle(0)
            raise
        self.metrics.model(wish.model).prompt_tokens.inc(wish.prompt_tokens)
        journey.limits = grant.headers
        journey.follow(ticket, wish.prompt_tokens)
        if self.prompts is not None:
            for served in self.models:
                if served.id == wish.model:  # none is, where the version has left meanwhile
                    self.prompts.put(journey.request_id, caller, requests, served.text.decode)
        ticket.at_first(grant.began)
        ticket.at_end(lambda: grant.settle(wish.prompt_tokens + ticket.tokens))
        if max(self.brownout, self.admission.level) < NO_SHADOW:
            self._shadow(requests, random.random())
        return ticket

    def default_tokens(self, usual: int) -> int:
        """Return how long an answer may be whose length nobody gave: less at a level of the ladder."""
        browned_out = max(self.brownout, self.admission.level) >= SHORT_ANSWERS
        return max(1, usual // 4) if browned_out else usual

    async def _admit(self, caller: Caller, wish: RequestCost) -> Grant:
        """Let a request in; that there is no room for one is told to whoever could make room."""
        try:
            return await self.admission.admit(caller, wish)
        except ApiError as error:
            if error.code in NO_ROOM:
                self.fleet.reports.refused(wish.model)
            raise

    def desks(self) -> list[ModelEndpoint]:
        """Return a desk for every model, each followed by those of its adapters."""
        return [
            ModelEndpoint(self, served, adapter)
            for served in self.models
            for adapter in ("", *served.adapters)
        ]

    def desk(self, name: str, conversation: str = "") -> ModelEndpoint:
        """Return the desk for a name; refuse a name that nothing here has.

        Requests of one conversation, whatever tells it from others, meet the same version.
        """
        found = self._find(name, conversation)
        if found is not None:
            return ModelEndpoint(self, found[0], standby=found[1])
        base, colon, adapter = name.rpartition(":")
        if colon and (found := self._find(base, conversation)) is not None:
            if adapter not in found[0].adapters:
                raise _no_adapter(found[0], adapter)
            return ModelEndpoint(self, found[0], adapter, standby=found[1])
        for served in self.models:
            if not colon and name in served.adapters:
                return ModelEndpoint(self, served, name)
        raise self._no_model(name)

    def _find(self, name: str, conversation: str) -> tuple[ServedModel, bool] | None:
        """Return the version that answers a name, and whether it only stands in for another."""
        route = self.routes.get(name)
        if route is not None and len(route.weights) == 1 and not route.standby:
            (name,) = route.weights  # nothing to choose from
            return next((served, False) for served in self.models if served.id == name)
        if route is not None and (route.weights or route.standby):
            place = place_of(conversation) if conversation else random.random()
            name, standby = choose_version(route, self.fleet.alive(), place)
            return next((served, standby) for served in self.models if served.id == name)
        return next(((served, False) for served in self.models if name in served.names), None)

    async def _read(self, model: RoutedModel) -> ServedModel | None:
        try:
            return await asyncio.to_thread(load_routed, model)
        except WindlassError as error:
            log.warning("%s is not served here: %s", model.id, error.message)
            self.fleet.reports.unreadable(model.id)
            return None

    def _fallbacks(self, request: Work) -> list[str]:
        """Return the versions that can go on with a request: of the same name, with the same vocabulary."""
        route = self.routes.get(request.model.partition("@")[0])
        if route is None or (isinstance(request, Generate) and request.adapter):
            return []
        own, known = request.model, self._languages
        others = [*(version for version, weight in route.weights.items() if weight > 0), *route.standby]
        return [each for each in others if each != own and known[each] == known[own]]

    def _shadow(self, requests: Sequence[Work], draw: float) -> None:
        """Copy requests to versions that are tried in the shadow; nobody waits for those answers."""
        route = self.routes.get(requests[0].model.partition("@")[0])
        own, known = requests[0].model, self._languages
        for version, share in route.shadow.items() if route is not None else ():
            if draw >= share or version not in self.fleet.alive() or version == own:
                continue
            if known[version] == known[own]:
                copies = [
                    msgspec.structs.replace(each, id=f"{each.id}~shadow", model=version) for each in requests
                ]
                self.fleet.ask(copies, shadow=True)

    def _no_model(self, name: str) -> ApiError:
        known = [desk.id for desk in self.desks()]
        there = f"'{known[0]}' is" if len(known) == 1 else did_you_mean(name[:100], known)
        message = f"model {shown(name)} is not served here; {there}"
        return ApiError("model_not_found", message, param="model", allowed={"enum": known[:64]})


def default_routes(models: Sequence[ServedModel]) -> dict[str, Route]:
    """Let the bare name of every model mean the first one of that name."""
    routes: dict[str, Route] = {}
    for served in models:
        routes.setdefault(served.id.partition("@")[0], Route({served.id: 1.0}))
    return routes


def conversation_of(tenant: str, user: str | None, opening: str | list[int]) -> str:
    """Return what requests of one conversation have in common: their user, or how they begin.

    Vectors of one tenant are compared with one another, so all of them are of one conversation.
    """
    return f"{tenant}\0{user or opening[:OPENING]}"


def _readable(route: Route, known: set[str]) -> Route:
    """Return a route without the versions that could not be read."""
    return Route(
        {version: weight for version, weight in route.weights.items() if version in known},
        {version: share for version, share in route.shadow.items() if version in known},
        [version for version in route.standby if version in known],
    )


def sharing(requests: Sequence[Work]) -> Sequence[Work]:
    """Return the requests of a tenant that agreed to share what was computed for them."""
    return [
        msgspec.structs.replace(each, shared_prefix=True) if isinstance(each, Generate) else each
        for each in requests
    ]


def request_cost(requests: Sequence[Work], deadline: Deadline | None = None) -> RequestCost:
    """Add up what requests for one model ask for; answers to the same prompt read it once."""
    first, deadline_s = requests[0], deadline.seconds if deadline else None
    if len(requests) == 1 and isinstance(first, Generate):
        read, most = len(first.tokens), first.max_tokens
        return RequestCost(first.model, 1, read, most, first.priority, deadline_s, max(0, first.logprobs))
    prompts = {id(r.tokens): len(r.tokens) for r in requests if isinstance(r, Generate)}
    inputs = sum(len(tokens) for r in requests if isinstance(r, Embed) for tokens in r.inputs)
    return RequestCost(
        model=first.model,
        answers=len(requests),
        prompt_tokens=sum(prompts.values()) + inputs,
        max_tokens=sum(r.max_tokens for r in requests if isinstance(r, Generate)),
        priority=first.priority,
        deadline_s=deadline_s,
        alternatives=max((0, *(r.logprobs for r in requests if isinstance(r, Generate)))),
    )


def _no_adapter(served: ServedModel, adapter: str) -> ApiError:
    there = did_you_mean(adapter[:100], list(served.adapters)) if served.adapters else "it is served alone"
    return ApiError(
        "model_not_found", f"'{served.id}' has no adapter {shown(adapter)}; {there}", param="model"
    )


class ModelEndpoint(msgspec.Struct, frozen=True, dict=True):
    """Where requests for one model, with or without an adapter, are taken."""

    service: GatewayService
    served: ServedModel
    adapter: str = ""
    standby: bool = False
    """Whether it only stands in, because no replica of the wanted version is there."""

    @property
    def id(self) -> str:
        return f"{self.served.id}:{self.adapter}" if self.adapter else self.served.id

    @property
    def metrics(self) -> Metrics:
        return self.service.metrics

    @property
    def model(self) -> str:
        """Return the version; the fleet tells each replica what it calls it."""
        return self.served.id

    @property
    def is_ready(self) -> bool:
        return self.service.fleet.is_known(self.served.id)

    async def meet(self) -> None:
        """Wait for the first engine that has the model."""
        await self.service.fleet.meet(self.served.id)

    @property
    def offered(self) -> ModelInfo:
        """Return what an engine said about the model; there must have been one."""
        return self.service.fleet.offered(self.served.id)

    @property
    def writer(self) -> ModelInfo:
        """Return what the engine said about the model, if it can write text."""
        offered = self.offered
        if offered.family in ENCODERS:
            raise ApiError(
                "wrong_model_kind",
                f"'{self.id}' is an encoder ({offered.family}); it makes embeddings and writes no text",
                param="model",
            )
        return offered

    @cached_property
    def stop_tokens(self) -> list[int]:
        """The tokens that end an answer; a configuration may name some that the model lacks."""
        vocabulary = self.offered.vocabulary
        return [token for token in self.served.stop_tokens if token < vocabulary]

    async def encode(self, prompt: str | list[int], *, special: bool, param: str) -> list[int]:
        """Return the token ids of a prompt, which are all known to the model."""
        if isinstance(prompt, str):
            try:
                return await self._tokenise(prompt, special, param)
            except ApiError as error:
                error.param = param
                raise
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
