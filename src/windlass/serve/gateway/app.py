"""The routes: a table of contents.

POST /v1/completions                      `routes.completions`
POST /v1/chat/completions                 `routes.chat`
POST /v1/embeddings                       `routes.embeddings`
POST /v1/tokenize  /v1/detokenize         `routes.tokens`
POST /v1/dry-run                          `routes.dry_run`
POST /v1/complete-call                    `routes.complete_call`
GET  /v1/key                              what the caller's key may do
GET  /v1/models  /v1/models/{model}       the models that are served
GET  /healthz  /readyz  /metrics          for load balancers and Prometheus
GET  /  /page/{name}  /errors  /errors/{code}    the web page
/admin/...                                `admin`: keys, tenants, roll-outs, replicas, audit; runs and plans
GET  /openapi.json                        the OpenAPI document of these routes
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from windlass import __version__
from windlass.http.error_reply import ErrorReply
from windlass.http.openapi import (
    BODIES,
    MODELS,
    TERMS,
    TEXTS,
    WORK,
    Documented,
    add_keys,
    add_schemas,
    gives,
    shows,
    takes,
)
from windlass.http.static_files import FILES, front_response, page_response
from windlass.serve.gateway.admin import audit, control, keys, limits, replicas, rollouts, tenants
from windlass.serve.gateway.admin.requests import (
    KeyLimits,
    NewKey,
    NewRollout,
    NewTenant,
    Rotation,
    TenantChange,
)
from windlass.serve.gateway.caller import caller_of
from windlass.serve.gateway.edge.access import Access, scope_of
from windlass.serve.gateway.edge.exception_handlers import add_handlers
from windlass.serve.gateway.edge.fast_path import FastPath
from windlass.serve.gateway.edge.middleware import GatewayMiddleware
from windlass.serve.gateway.observe.request_observer import RequestObserver
from windlass.serve.gateway.observe.request_trace import watch_lag
from windlass.serve.gateway.routes.chat import converse
from windlass.serve.gateway.routes.complete_call import CompleteCallReply, CompleteCallRequest, complete_call
from windlass.serve.gateway.routes.completions import complete
from windlass.serve.gateway.routes.dry_run import DryRunReply, DryRunRequest, try_out
from windlass.serve.gateway.routes.embeddings import embed
from windlass.serve.gateway.routes.error_pages import LANGUAGE, CodeList, error_response, errors_response
from windlass.serve.gateway.routes.pipeline import answer
from windlass.serve.gateway.routes.tokens import (
    DetokenizeRequest,
    TextReply,
    TokenizeRequest,
    TokenList,
    detokenise,
    tokenise,
)
from windlass.serve.gateway.schemas.replies import (
    ChatReply,
    CompletionReply,
    EmbeddingReply,
    HealthReply,
    ModelList,
    OwnKey,
    ServedModelReply,
)
from windlass.serve.gateway.schemas.request_body import read
from windlass.serve.gateway.schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from windlass.serve.gateway.service import GatewayService, ModelEndpoint
from windlass.spec.protocol.control import ControlRefusal

REQUEST_BODIES: tuple[type[BaseModel], ...] = (
    CompletionRequest,
    ChatRequest,
    EmbeddingRequest,
    TokenizeRequest,
    DetokenizeRequest,
    DryRunRequest,
    CompleteCallRequest,
    NewKey,
    KeyLimits,
    Rotation,
    NewTenant,
    TenantChange,
    NewRollout,
    *control.BODIES,
)
ERROR_BODIES = (ErrorReply, ControlRefusal)
ADMIN = (
    keys.router,
    tenants.router,
    limits.router,
    rollouts.router,
    replicas.router,
    audit.router,
    control.router,
)

PAGE_TYPES = sorted({kind.partition(";")[0] for kind in FILES.values()})
METRICS = gives(None) | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

FAST_PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
"""Paths that `edge.fast_path` dispatches without FastAPI."""

router = APIRouter()


def build_app(service: GatewayService, access: Access, observer: RequestObserver | None = None) -> FastAPI:
    """Build the application: routes, middleware and the service behind them."""
    app = Gateway(
        title="Windlass",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.service = service
    app.state.keys_needed = access.keys is not None
    routers = (router, *ADMIN)
    for included in routers:
        app.include_router(included)
    fast = [route for route in router.routes if isinstance(route, APIRoute) and route.path in FAST_PATHS]
    app.add_middleware(FastPath, routes=fast, handlers=app.exception_handlers)
    app.add_middleware(
        GatewayMiddleware, observer=observer or RequestObserver(service.metrics), access=access
    )
    add_handlers(app, [route for included in routers for route in included.routes])
    return app


class Gateway(Documented):
    """The API; its OpenAPI document also describes the request bodies and the scope that each path needs."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Skip FastAPI's own tracing, which inspects every request; `observe.traces` has ours."""
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Put GatewayMiddleware outermost: it sees every request first and last, and internal errors."""
        app: ASGIApp = ExceptionMiddleware(AsyncExitStackMiddleware(self.router), self.exception_handlers)
        for middleware, args, kwargs in reversed(self.user_middleware):
            app = middleware(app, *args, **kwargs)
        return app

    def describe(self) -> dict[str, Any]:
        document = super().describe()
        add_schemas(document, (*REQUEST_BODIES, *ERROR_BODIES))
        add_keys(document, {path: scope_of(path.encode()) or "" for path in document["paths"]})
        return document


def _service(request: Request) -> GatewayService:
    service: GatewayService = request.app.state.service
    return service


@router.post(
    "/v1/completions",
    openapi_extra=takes(CompletionRequest, TERMS),
    responses=gives(CompletionReply, *BODIES, *MODELS, *TEXTS, *WORK, streams=True),
)
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts. With stream: true, the reply is server-sent events of the same shape."""
    return await answer(request, CompletionRequest, _service(request), complete)


@router.post(
    "/v1/chat/completions",
    openapi_extra=takes(ChatRequest, TERMS),
    responses=gives(ChatReply, *BODIES, *MODELS, *TEXTS, *WORK, streams=True),
)
async def create_chat_completion(request: Request) -> Response:
    """Write the next turn of a conversation. With stream: true, the reply is server-sent events."""
    return await answer(request, ChatRequest, _service(request), converse)


@router.post(
    "/v1/embeddings",
    openapi_extra=takes(EmbeddingRequest, TERMS),
    responses=gives(EmbeddingReply, *BODIES, *MODELS, *TEXTS, *WORK),
)
async def create_embedding(request: Request) -> Response:
    """Turn each input into one unit vector."""
    return await answer(request, EmbeddingRequest, _service(request), embed)


@router.post(
    "/v1/tokenize",
    openapi_extra=takes(TokenizeRequest),
    responses=gives(TokenList, *BODIES, *MODELS, *TEXTS),
)
async def create_tokens(request: Request) -> Response:
    """Return the tokens of a text or a conversation, as the model reads them, and their number."""
    return await tokenise(await read(request, TokenizeRequest), _service(request))


@router.post(
    "/v1/detokenize", openapi_extra=takes(DetokenizeRequest), responses=gives(TextReply, *BODIES, *MODELS)
)
async def create_text(request: Request) -> Response:
    """Return the text of token ids."""
    return await detokenise(await read(request, DetokenizeRequest), _service(request))


@router.post("/v1/dry-run", openapi_extra=takes(DryRunRequest), responses=gives(DryRunReply, *BODIES))
async def create_dry_run(request: Request) -> Response:
    """Check a request without computing it: its tokens, whether it fits, how long it would take, its cost."""
    return await try_out(request, await read(request, DryRunRequest), _service(request))


@router.post(
    "/v1/complete-call",
    openapi_extra=takes(CompleteCallRequest),
    responses=gives(CompleteCallReply, *BODIES),
)
async def create_completed_call(request: Request) -> Response:
    """Complete a half-typed call: suggestions at the cursor, corrections, and the whole call."""
    return await complete_call(request, await read(request, CompleteCallRequest), _service(request))


@router.get("/v1/key", responses=gives(OwnKey))
async def show_own_key(request: Request) -> Response:
    """Return what the key of this request may do; without keys, what every caller may do."""
    caller = caller_of(request)
    return _json(OwnKey(object="key", id=caller.key, tenant=caller.tenant, scopes=sorted(caller.scopes)))


@router.get("/v1/models", responses=gives(ModelList))
async def list_models(request: Request) -> Response:
    """List the served models, each followed by its adapters."""
    return _json(
        ModelList(object="list", data=[_model(endpoint) for endpoint in _service(request).endpoints()])
    )


@router.get("/v1/models/{model:path}", responses=gives(ServedModelReply, "model_not_found"))
async def show_model(request: Request, model: str) -> Response:
    """Show a model or an adapter, by any of its names."""
    return _json(_model(_service(request).endpoint(model)))


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=gives(HealthReply, is_open=True))
async def show_health(request: Request) -> Response:
    """Return 200 while the gateway process is alive."""
    return _json(HealthReply(status="ok"))


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=gives(HealthReply, "engine_unavailable", is_open=True))
async def show_readiness(request: Request) -> Response:
    """Return 200 once an engine for every model is connected; otherwise 503."""
    _service(request).fleet.check_ready()
    return _json(HealthReply(status="ready"))


@router.get("/metrics", response_class=Response, responses=METRICS)
async def show_metrics(request: Request) -> Response:
    """Return the metrics in the Prometheus text format; a key of a tenant sees the metrics of that tenant."""
    media_type = "text/plain; version=0.0.4; charset=utf-8"
    metrics, bound = _service(request).metrics, caller_of(request).bound
    text = await asyncio.to_thread(metrics.text, bound)  # takes milliseconds; streams would wait for it
    return Response(text, media_type=media_type)


@router.head("/", include_in_schema=False)
@router.get("/", response_class=Response, responses=shows("text/html"))
async def show_page(request: Request) -> Response:
    """Return the web page."""
    return front_response(request, keys=request.app.state.keys_needed)


@router.head("/page/{name}", include_in_schema=False)
@router.get("/page/{name}", response_class=Response, responses=shows(*PAGE_TYPES))
async def show_file(request: Request, name: str) -> Response:
    """Return a file of the web page."""
    return _found(page_response(request, name))


@router.head("/errors", include_in_schema=False)
@router.get(
    "/errors",
    response_class=Response,
    openapi_extra=takes(None, (LANGUAGE,)),
    responses=shows("text/html", model=CodeList),
)
async def show_errors(request: Request) -> Response:
    """List every error code with its meaning, as a page or as application/json."""
    return errors_response(request)


@router.head("/errors/{code}", include_in_schema=False)
@router.get(
    "/errors/{code}",
    response_class=Response,
    openapi_extra=takes(None, (LANGUAGE,)),
    responses=shows("text/html", model=CodeList),
)
async def show_error(request: Request, code: str) -> Response:
    """Explain an error code: what happened, an example, what to do."""
    return _found(error_response(request, code))


def _found(response: Response | None) -> Response:
    if response is None:
        raise HTTPException(404)
    return response


def _model(endpoint: ModelEndpoint) -> ServedModelReply:
    model_info = endpoint.model_info if endpoint.is_ready else None
    return ServedModelReply(
        id=endpoint.id,
        object="model",
        created=endpoint.served.created,
        owned_by="windlass",
        parent=endpoint.served.id if endpoint.adapter else None,
        context_length=model_info.context if model_info else None,
        parameters=model_info.parameters or None if model_info else None,
        family=model_info.family if model_info else None,
    )


def _json(reply: ModelList | ServedModelReply | OwnKey | HealthReply) -> Response:
    return Response(reply.model_dump_json(), media_type="application/json")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Keep the connections to the engines while the app runs."""
    service: GatewayService = app.state.service
    running = asyncio.gather(service.run(), watch_lag(service.metrics))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
