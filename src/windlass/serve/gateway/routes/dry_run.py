"""POST /v1/dry-run: checks a request, its cost and its duration without computing it.

The body goes through the same checks, template and tokenizer as on its route, up to the point where it would
be sent to the engine. If the route would refuse it, the reply holds that error; the dry run itself succeeds.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.error_reply import ErrorBody
from windlass.http.errors import ApiError, envelope
from windlass.serve.gateway.caller import Caller, caller_of
from windlass.serve.gateway.limits.admission_controller import AdmissionController, amounts_of
from windlass.serve.gateway.limits.request_cost import RequestCost, request_cost
from windlass.serve.gateway.routes import chat, completions, embeddings
from windlass.serve.gateway.schemas.repair import with_correction
from windlass.serve.gateway.schemas.request_body import check
from windlass.serve.gateway.schemas.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RequestBody,
)
from windlass.serve.gateway.service import GatewayService, ModelEndpoint
from windlass.spec.protocol.wire import Embed

Route = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]


class DryRunRequest(RequestBody):
    """POST /v1/dry-run."""

    route: Route
    body: dict[str, Any] = Field(description="The body for that route.")


class LimitState(BaseModel):
    """What is left of one limit: of the whole service, of the tenant or of the key."""

    scope: Literal["all", "tenant", "key"]
    kind: str
    left: float
    capacity: float
    needed: float
    """The maximum that this request would use."""


class DryRunCost(BaseModel):
    """The cost of a request whose answers have the maximum length."""

    maximum: float
    currency: str
    """ISO 4217 code."""


class DryRunReply(BaseModel):
    """The answer to POST /v1/dry-run."""

    object: Literal["dry_run"]
    fits: bool
    error: ErrorBody | None = None
    """Why it does not fit."""
    model: str | None = None
    """The version that would answer now."""
    context_length: int | None = None
    answers: int | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    """The maximum of all answers together."""
    first_token_s: float | None = None
    whole_s: float | None = None
    """Estimates from recent answers of this gateway."""
    cost: DryRunCost | None = None
    """Given if [serve.price] sets the price of tokens."""
    quota: list[LimitState] = []


async def try_out(request: Request, body: DryRunRequest, service: GatewayService) -> Response:
    """Answer a dry run."""
    caller = caller_of(request)
    try:
        endpoint, cost = await _prepare(body, service, caller)
    except ApiError as error:
        error_body = envelope(with_correction(error, body.body), request.state.request_id)["error"]
        reply = DryRunReply(object="dry_run", fits=False, error=ErrorBody.model_validate(error_body))
    else:
        reply = await _forecast(endpoint, cost, service, caller)
    return Response(reply.model_dump_json(), media_type="application/json")


async def _prepare(
    body: DryRunRequest, service: GatewayService, caller: Caller
) -> tuple[ModelEndpoint, RequestCost]:
    """Prepare a body as its route does before it submits to the engine; return its cost."""
    match body.route:
        case "/v1/completions":
            completion_body = check(CompletionRequest, body.body)
            endpoint = service.endpoint(completion_body.model)
            return endpoint, request_cost(
                (await completions.prepare(completion_body, endpoint, "dry", caller.tenant)).requests
            )
        case "/v1/chat/completions":
            chat_body = check(ChatRequest, body.body)
            endpoint = service.endpoint(chat_body.model)
            return endpoint, request_cost(
                (await chat.prepare(chat_body, endpoint, "dry", caller.tenant)).requests
            )
        case "/v1/embeddings":
            embedding_body = check(EmbeddingRequest, body.body)
            endpoint = service.endpoint(embedding_body.model)
            inputs = await embeddings.prepare(embedding_body, endpoint)
            return endpoint, request_cost([Embed(id="dry", inputs=inputs, model=endpoint.model)])


async def _forecast(
    endpoint: ModelEndpoint, cost: RequestCost, service: GatewayService, caller: Caller
) -> DryRunReply:
    """Return what the request needs, how long it would take and what is left of the caller's limits."""
    estimate = service.admission.estimate(cost)
    return DryRunReply(
        object="dry_run",
        fits=True,
        model=endpoint.id,
        context_length=endpoint.model_info.context,
        answers=cost.answers,
        prompt_tokens=cost.prompt_tokens,
        max_tokens=cost.max_tokens,
        first_token_s=estimate.first_s,
        whole_s=estimate.whole_s,
        cost=_cost(service, cost),
        quota=await _budgets(service.admission, cost, caller),
    )


def _cost(service: GatewayService, cost: RequestCost) -> DryRunCost | None:
    price = service.price
    if price is None:
        return None
    return DryRunCost(maximum=price.max_cost(cost.prompt_tokens, cost.max_tokens), currency=price.currency)


async def _budgets(admission: AdmissionController, cost: RequestCost, caller: Caller) -> list[LimitState]:
    needed = amounts_of(cost)
    return [
        LimitState(
            scope="all" if name.scope == "all" else "tenant" if name.scope.startswith("tenant:") else "key",
            kind=name.kind,
            left=left,
            capacity=rule.capacity,
            needed=needed[name.kind],
        )
        for name, rule, left in await admission.left(caller)
    ]
