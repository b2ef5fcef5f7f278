"""POST /v1/dry-run: what would become of a request, without computing any of it.

The body goes through the same checks, templates and tokenizer as on its route, up to the point where the
engine would be asked. What the route would refuse is told as its refusal; the dry run itself succeeds.
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
from windlass.serve.gateway.limits.request_cost import RequestCost
from windlass.serve.gateway.routes import chat, completions, embeddings
from windlass.serve.gateway.schemas.repair import amended
from windlass.serve.gateway.schemas.request_body import check
from windlass.serve.gateway.schemas.requests import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RequestBody,
)
from windlass.serve.gateway.service import GatewayService, ModelEndpoint, request_cost
from windlass.spec.protocol.wire import Embed

Route = Literal["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]


class DryRunRequest(RequestBody):
    """POST /v1/dry-run."""

    route: Route
    body: dict[str, Any] = Field(description="What would be sent to that route.")


class LimitState(BaseModel):
    """What is left of one limit, of everybody, of the tenant or of the key."""

    scope: Literal["all", "tenant", "key"]
    kind: str
    left: float
    most: float
    needed: float
    """What this request would take at most."""


class DryRunCost(BaseModel):
    """What a request costs if its answers are as long as they may be."""

    most: float
    currency: str
    """Its code, as ISO 4217 has it."""


class DryRunReply(BaseModel):
    """The answer to POST /v1/dry-run."""

    object: Literal["dry_run"]
    fits: bool
    error: ErrorBody | None = None
    """Why not."""
    model: str | None = None
    """The version that would answer now."""
    context_length: int | None = None
    answers: int | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    """Tokens that all answers may have together."""
    first_token_s: float | None = None
    whole_s: float | None = None
    """Estimates, from what this gateway answered lately."""
    cost: DryRunCost | None = None
    """Told where [serve.price] says what tokens cost."""
    quota: list[LimitState] = []


async def try_out(request: Request, ask: DryRunRequest, service: GatewayService) -> Response:
    """Say what would become of a request."""
    caller = caller_of(request)
    try:
        desk, wish = await _made_ready(ask, service, caller)
    except ApiError as error:
        told = envelope(amended(error, ask.body), request.state.request_id)["error"]
        reply = DryRunReply(object="dry_run", fits=False, error=ErrorBody.model_validate(told))
    else:
        reply = await _foreseen(desk, wish, service, caller)
    return Response(reply.model_dump_json(), media_type="application/json")


async def _made_ready(
    ask: DryRunRequest, service: GatewayService, caller: Caller
) -> tuple[ModelEndpoint, RequestCost]:
    """Do with a body what its route does before the engine is asked."""
    match ask.route:
        case "/v1/completions":
            completion = check(CompletionRequest, ask.body)
            desk = service.desk(completion.model)
            return desk, request_cost(
                (await completions.prepare(completion, desk, "dry", caller.tenant)).requests
            )
        case "/v1/chat/completions":
            talk = check(ChatRequest, ask.body)
            desk = service.desk(talk.model)
            return desk, request_cost((await chat.prepare(talk, desk, "dry", caller.tenant)).requests)
        case "/v1/embeddings":
            embedding = check(EmbeddingRequest, ask.body)
            desk = service.desk(embedding.model)
            inputs = await embeddings.prepare(embedding, desk)
            return desk, request_cost([Embed(id="dry", inputs=inputs, model=desk.model)])


async def _foreseen(
    desk: ModelEndpoint, wish: RequestCost, service: GatewayService, caller: Caller
) -> DryRunReply:
    """Tell what the request needs, how long it would take and what it would leave."""
    gate = service.admission
    estimate = gate.estimate(wish) if isinstance(gate, AdmissionController) else None
    return DryRunReply(
        object="dry_run",
        fits=True,
        model=desk.id,
        context_length=desk.offered.context,
        answers=wish.answers,
        prompt_tokens=wish.prompt_tokens,
        max_tokens=wish.max_tokens,
        first_token_s=estimate.first_s if estimate else None,
        whole_s=estimate.whole_s if estimate else None,
        cost=_cost(service, wish),
        quota=await _budgets(gate, wish, caller) if isinstance(gate, AdmissionController) else [],
    )


def _cost(service: GatewayService, wish: RequestCost) -> DryRunCost | None:
    price = service.price
    if price is None:
        return None
    return DryRunCost(most=price.most(wish.prompt_tokens, wish.max_tokens), currency=price.currency)


async def _budgets(gate: AdmissionController, wish: RequestCost, caller: Caller) -> list[LimitState]:
    needed = amounts_of(wish)
    return [
        LimitState(
            scope="all" if name.scope == "all" else "tenant" if name.scope.startswith("tenant:") else "key",
            kind=name.kind,
            left=left,
            most=rule.most,
            needed=needed[name.kind],
        )
        for name, rule, left in await gate.left(caller)
    ]
