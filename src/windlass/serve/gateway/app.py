"""The routes: a table of contents.

POST /v1/completions                      serve/gateway/routes/completions.py
POST /v1/chat/completions                 serve/gateway/routes/chat.py
POST /v1/embeddings                       serve/gateway/routes/embeddings.py
POST /v1/tokenize  /v1/detokenize         serve/gateway/routes/tokens.py
POST /v1/dry-run                          serve/gateway/routes/dry_run.py
POST /v1/complete-call                    serve/gateway/routes/complete_call.py
GET  /v1/key                              what the caller's key may do
GET  /v1/models  /v1/models/{model}       what is served
GET  /healthz  /readyz  /metrics          for those who watch
GET  /  /page/{name}  /errors  /errors/{code}    for people
/admin/...                                admin/: keys, tenants, roll-outs, replicas, audit; runs and plans
GET  /openapi.json                        all of this, for programs
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
from windlass.serve.gateway.edge.fast_path import Shortcut
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

ASKED: tuple[type[BaseModel], ...] = (
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
REFUSED = (ErrorReply, ControlRefusal)
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

BUSY = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
"""Paths that requests take past the framework."""

router = APIRouter()


def build_app(service: GatewayService, access: Access, witness: RequestObserver | None = None) -> FastAPI:
    """Put the routes, the guard and the fleet of engines together."""
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
    for each in (router, *ADMIN):
        app.include_router(each)
    busy = [route for route in router.routes if isinstance(route, APIRoute) and route.path in BUSY]
    app.add_middleware(Shortcut, routes=busy, handlers=app.exception_handlers)
    app.add_middleware(GatewayMiddleware, witness=witness or RequestObserver(service.metrics), access=access)
    add_handlers(app, [route for each in (router, *ADMIN) for route in each.routes])
    return app


class Gateway(Documented):
    """The API, with a description of the bodies that serve/gateway/schemas/request_body.py reads, and of who may call what."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Skip the framework's own tracing, which looks at every request; serve/gateway/observe/traces.py has ours."""
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Let the guard be the first and the last to see a request; it also tells of our mistakes."""
        app: ASGIApp = ExceptionMiddleware(AsyncExitStackMiddleware(self.router), self.exception_handlers)
        for middleware, args, kwargs in reversed(self.user_middleware):
            app = middleware(app, *args, **kwargs)
        return app

    def describe(self) -> dict[str, Any]:
        document = super().describe()
        add_schemas(document, (*ASKED, *REFUSED))
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
    """Continue one or more prompts; with stream: true, server-sent events of the same shape."""
    return await answer(request, CompletionRequest, _service(request), complete)


@router.post(
    "/v1/chat/completions",
    openapi_extra=takes(ChatRequest, TERMS),
    responses=gives(ChatReply, *BODIES, *MODELS, *TEXTS, *WORK, streams=True),
)
async def create_chat_completion(request: Request) -> Response:
    """Give the next turn of a conversation; with stream: true, server-sent events of chunks."""
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
    """Count and show the tokens of a text or a conversation, as the model would read them."""
    return await tokenise(await read(request, TokenizeRequest), _service(request))


@router.post(
    "/v1/detokenize", openapi_extra=takes(DetokenizeRequest), responses=gives(TextReply, *BODIES, *MODELS)
)
async def create_text(request: Request) -> Response:
    """Write the text that token ids stand for."""
    return await detokenise(await read(request, DetokenizeRequest), _service(request))


@router.post("/v1/dry-run", openapi_extra=takes(DryRunRequest), responses=gives(DryRunReply, *BODIES))
async def create_dry_run(request: Request) -> Response:
    """Say what would become of a request: its tokens, whether it fits, how long it would take."""
    return await try_out(request, await read(request, DryRunRequest), _service(request))


@router.post(
    "/v1/complete-call",
    openapi_extra=takes(CompleteCallRequest),
    responses=gives(CompleteCallReply, *BODIES),
)
async def create_completed_call(request: Request) -> Response:
    """Offer what could come next in a half-typed call, set its slips right, and write the whole of it."""
    return await complete_call(request, await read(request, CompleteCallRequest), _service(request))


@router.get("/v1/key", responses=gives(OwnKey))
async def show_own_key(request: Request) -> Response:
    """Say what the key of this request may do; of a service without keys, what everybody may."""
    caller = caller_of(request)
    return _json(OwnKey(object="key", id=caller.key, tenant=caller.tenant, scopes=sorted(caller.scopes)))


@router.get("/v1/models", responses=gives(ModelList))
async def list_models(request: Request) -> Response:
    """List what is served: models, each followed by its adapters."""
    return _json(ModelList(object="list", data=[_model(desk) for desk in _service(request).desks()]))


@router.get("/v1/models/{model:path}", responses=gives(ServedModelReply, "model_not_found"))
async def show_model(request: Request, model: str) -> Response:
    """Show a model or an adapter, by any of its names."""
    return _json(_model(_service(request).desk(model)))


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=gives(HealthReply, is_open=True))
async def show_health(request: Request) -> Response:
    """Say that the gateway process lives."""
    return _json(HealthReply(status="ok"))


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=gives(HealthReply, "engine_unavailable", is_open=True))
async def show_readiness(request: Request) -> Response:
    """Say that the engine is connected and has introduced itself; otherwise 503."""
    _service(request).fleet.check_ready()
    return _json(HealthReply(status="ready"))


@router.get("/metrics", response_class=Response, responses=METRICS)
async def show_metrics(request: Request) -> Response:
    """Give the figures, as Prometheus reads them; to a tenant's key, those of that tenant."""
    media_type = "text/plain; version=0.0.4; charset=utf-8"
    tell, bound = _service(request).metrics.text, caller_of(request).bound
    text = await asyncio.to_thread(tell, bound)  # milliseconds, which streams would wait
    return Response(text, media_type=media_type)


@router.head("/", include_in_schema=False)
@router.get("/", response_class=Response, responses=shows("text/html"))
async def show_page(request: Request) -> Response:
    """Show the page for people."""
    return front_response(request, keys=request.app.state.keys_needed)


@router.head("/page/{name}", include_in_schema=False)
@router.get("/page/{name}", response_class=Response, responses=shows(*PAGE_TYPES))
async def show_file(request: Request, name: str) -> Response:
    """Give a file of the page."""
    return _found(page_response(request, name))


@router.head("/errors", include_in_schema=False)
@router.get(
    "/errors",
    response_class=Response,
    openapi_extra=takes(None, (LANGUAGE,)),
    responses=shows("text/html", model=CodeList),
)
async def show_errors(request: Request) -> Response:
    """List every error code, with its meaning; as facts for those who ask for application/json."""
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


def _model(desk: ModelEndpoint) -> ServedModelReply:
    offered = desk.offered if desk.is_ready else None
    return ServedModelReply(
        id=desk.id,
        object="model",
        created=desk.served.created,
        owned_by="windlass",
        parent=desk.served.id if desk.adapter else None,
        context_length=offered.context if offered else None,
        parameters=offered.parameters or None if offered else None,
        family=offered.family if offered else None,
    )


def _json(reply: ModelList | ServedModelReply | OwnKey | HealthReply) -> Response:
    return Response(reply.model_dump_json(), media_type="application/json")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold the connections to the engines for as long as the app runs."""
    service: GatewayService = app.state.service
    running = asyncio.gather(service.run(), watch_lag(service.metrics))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
