"""The service behind all routes: the served models, the meaning of their names, and admission to the engines.

A request names a model, "NAME" or "NAME@VERSION", or an adapter of one, "NAME:ADAPTER" or just "ADAPTER".
A bare name is a route, which splits its traffic between versions. A ModelEndpoint is what a name resolves to:
the tokenizer, the limits and the version that the engine is sent.
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
from windlass.serve.gateway.limits.admission_controller import AdmissionController, AdmittedCost
from windlass.serve.gateway.limits.request_cost import RequestCost, request_cost
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.gateway.observe.prompt_log import PromptLog
from windlass.serve.gateway.observe.request_trace import RequestTrace
from windlass.serve.gateway.text.served_model import ServedModel, load_routed
from windlass.spec.errors import WindlassError, did_you_mean
from windlass.spec.protocol.routing import Route, RoutedModel, Routing
from windlass.spec.protocol.wire import Generate, ModelInfo, Work
from windlass.spec.serve import Price
from windlass.store.database import Database

ENCODERS = {"bert"}
NO_SHADOW, SHORT_ANSWERS = 1, 2
"""Brown-out levels (`limits.brown_out`) at which shadow copies stop and default answers get shorter."""
OPENING = 256
"""Characters, or tokens, at the start of a conversation that identify it."""
NO_CAPACITY = frozenset({"queue_full", "overloaded", "deadline_unreachable"})
"""Refusals that more replicas would prevent; a caller's own limits are not among them."""
LONG_TEXT_CHARS = 8192
"""Longer texts are tokenised in a thread, so that they do not delay other streams."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class GatewayService:
    """All served models, and what they share."""

    models: tuple[ServedModel, ...]
    fleet: ReplicaFleet
    metrics: Metrics
    admission: AdmissionController
    database: Database | None = None
    """The service's records; None in a gateway that runs on its own."""
    prompts: PromptLog | None = None
    """The prompt log, if the operator enables one."""
    deadline_s: float | None = None
    """The longest time that any answer may take."""
    price: Price | None = None
    """The price of tokens, if the job file gives one."""
    routes: dict[str, Route] = field(default_factory=dict)
    brownout: int = 0
    supervisor_socket: Path | None = None
    """The supervisor's Unix socket, if there is one; `name` is what it calls this gateway."""
    name: str = "gateway"
    control: Upstream | None = None
    """The control process, if the service has one."""

    def __post_init__(self) -> None:
        # Versions that were removed stay here: a request for one may still be in preparation.
        self._languages = {served.id: served.language for served in self.models}
        self.routes = self.routes or default_routes(self.models)

    async def run(self) -> None:
        """Maintain the connections to the engines, the quotas, and the connection to the supervisor."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.fleet.run())
            group.create_task(self.admission.run())
            if self.supervisor_socket is not None:
                group.create_task(
                    SupervisorClient(self.supervisor_socket, self.name, self.fleet, self.apply).run()
                )

    async def apply(self, routing: Routing) -> None:
        """Apply a routing table: load models that are new, then route requests by it.

        A version whose files cannot be read gets no requests; the gateway reports it to the supervisor.
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

    async def submit(
        self, caller: Caller, requests: Sequence[Work], deadline: Deadline | None, trace: RequestTrace
    ) -> RequestHandle:
        """Admit requests and send them to the engines; the caller of this must close the handle."""
        trace.prepare()
        if caller.shared_prefix:
            requests = sharing(requests)
        cost = request_cost(requests, deadline)
        admitted = await self._admit(caller, cost)
        handle = self.fleet.submit(requests, self._fallbacks(requests[0]))
        trace.limits = admitted.headers
        trace.follow(handle, cost.prompt_tokens)
        handle.at_first(admitted.began)
        handle.at_end(lambda: admitted.settle(cost.prompt_tokens + handle.tokens))
        self.metrics.model(cost.model).prompt_tokens.inc(cost.prompt_tokens)
        self._log_prompt(trace.request_id, caller, requests)
        if max(self.brownout, self.admission.level) < NO_SHADOW:
            self._shadow(requests, random.random())
        return handle

    def default_tokens(self, usual: int) -> int:
        """Return the default answer length: a quarter of the usual one from brown-out level 2 on."""
        browned_out = max(self.brownout, self.admission.level) >= SHORT_ANSWERS
        return max(1, usual // 4) if browned_out else usual

    async def _admit(self, caller: Caller, cost: RequestCost) -> AdmittedCost:
        """Admit a request; report a lack of capacity to the supervisor, which may add replicas."""
        try:
            return await self.admission.admit(caller, cost)
        except ApiError as error:
            if error.code in NO_CAPACITY:
                self.fleet.reports.refused(cost.model)
            raise

    def _log_prompt(self, request_id: str, caller: Caller, requests: Sequence[Work]) -> None:
        if self.prompts is None:
            return
        for served in self.models:
            if served.id == requests[0].model:  # none, if the version was removed meanwhile
                self.prompts.put(request_id, caller, requests, served.text.decode)

    def endpoints(self) -> list[ModelEndpoint]:
        """Return an endpoint for every model, each followed by those of its adapters."""
        return [
            ModelEndpoint(self, served, adapter)
            for served in self.models
            for adapter in ("", *served.adapters)
        ]

    def endpoint(self, name: str, conversation: str = "") -> ModelEndpoint:
        """Return the endpoint for a name; raise ApiError for an unknown name.

        Requests with the same `conversation` get the same version.
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
        """Return the version that answers a name, and whether it is a standby for another."""
        route = self.routes.get(name)
        if route is not None and len(route.weights) == 1 and not route.standby:
            (name,) = route.weights  # only one version
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
        """Return the versions that can continue a request: same model name, same vocabulary."""
        route = self.routes.get(request.model.partition("@")[0])
        if route is None or (isinstance(request, Generate) and request.adapter):
            return []
        own, known = request.model, self._languages
        others = [*(version for version, weight in route.weights.items() if weight > 0), *route.standby]
        return [version for version in others if version != own and known[version] == known[own]]

    def _shadow(self, requests: Sequence[Work], draw: float) -> None:
        """Copy requests to shadow versions; their answers are discarded."""
        route = self.routes.get(requests[0].model.partition("@")[0])
        own, known = requests[0].model, self._languages
        for version, share in route.shadow.items() if route is not None else ():
            if draw >= share or version not in self.fleet.alive() or version == own:
                continue
            if known[version] == known[own]:
                copies = [
                    msgspec.structs.replace(request, id=f"{request.id}~shadow", model=version)
                    for request in requests
                ]
                self.fleet.submit(copies, shadow=True)

    def _no_model(self, name: str) -> ApiError:
        known = [endpoint.id for endpoint in self.endpoints()]
        hint = f"'{known[0]}' is" if len(known) == 1 else did_you_mean(name[:100], known)
        message = f"model {shown(name)} is not served here; {hint}"
        return ApiError("model_not_found", message, param="model", allowed={"enum": known[:64]})


def default_routes(models: Sequence[ServedModel]) -> dict[str, Route]:
    """Route the bare name of every model to the first version of that name."""
    routes: dict[str, Route] = {}
    for served in models:
        routes.setdefault(served.id.partition("@")[0], Route({served.id: 1.0}))
    return routes


def conversation_of(tenant: str, user: str | None, opening: str | list[int]) -> str:
    """Return the key of a conversation: the tenant, with the user or the start of the prompt.

    A tenant compares its embeddings, so they all count as one conversation and get the same version.
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
    """Mark the requests of a tenant that agreed to share cached prefixes with other tenants."""
    return [
        msgspec.structs.replace(request, shared_prefix=True) if isinstance(request, Generate) else request
        for request in requests
    ]


def _no_adapter(served: ServedModel, adapter: str) -> ApiError:
    hint = did_you_mean(adapter[:100], list(served.adapters)) if served.adapters else "it has no adapters"
    return ApiError(
        "model_not_found", f"'{served.id}' has no adapter {shown(adapter)}; {hint}", param="model"
    )


class ModelEndpoint(msgspec.Struct, frozen=True, dict=True):
    """What a model name resolves to: a served version, with or without an adapter."""

    service: GatewayService
    served: ServedModel
    adapter: str = ""
    standby: bool = False
    """Whether it is a standby, because the wanted version has no replica."""

    @property
    def id(self) -> str:
        return f"{self.served.id}:{self.adapter}" if self.adapter else self.served.id

    @property
    def metrics(self) -> Metrics:
        return self.service.metrics

    @property
    def model(self) -> str:
        """Return the version that requests are sent to."""
        return self.served.id

    @property
    def is_ready(self) -> bool:
        return self.service.fleet.is_known(self.served.id)

    async def wait_until_ready(self) -> None:
        """Wait until an engine with the model has connected."""
        await self.service.fleet.wait_until_known(self.served.id)

    @property
    def model_info(self) -> ModelInfo:
        """Return what an engine reported about the model; raise ApiError if none has connected yet."""
        return self.service.fleet.model_info(self.served.id)

    @property
    def writer(self) -> ModelInfo:
        """Return what the engine reported about the model; raise ApiError if it cannot generate text."""
        model_info = self.model_info
        if model_info.family in ENCODERS:
            raise ApiError(
                "wrong_model_kind",
                f"'{self.id}' is an encoder ({model_info.family}); it makes embeddings and writes no text",
                param="model",
            )
        return model_info

    @cached_property
    def stop_tokens(self) -> list[int]:
        """The tokens that end an answer, without those that are outside the model's vocabulary."""
        vocabulary = self.model_info.vocabulary
        return [token for token in self.served.stop_tokens if token < vocabulary]

    async def encode(self, prompt: str | list[int], *, special: bool, param: str) -> list[int]:
        """Return the token ids of a prompt; raise ApiError for ids outside the vocabulary."""
        if isinstance(prompt, str):
            try:
                return await self._tokenise(prompt, special, param)
            except ApiError as error:
                error.param = param
                raise
        check_tokens(prompt, self.model_info.vocabulary, param)
        return prompt

    async def _tokenise(self, prompt: str, special: bool, param: str) -> list[int]:
        encode, context = self.served.text.encode, self.model_info.context
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
    """Raise ApiError for ids outside the vocabulary."""
    worst = max(tokens, default=0)
    if worst >= vocabulary:
        raise ApiError(
            "invalid_value",
            f"'{param}' has token {worst}; the vocabulary ends at {vocabulary - 1}",
            param=param,
        )
