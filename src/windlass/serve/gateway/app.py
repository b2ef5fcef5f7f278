"""The routes: a table of contents.

GET  /v1/models  /v1/models/{model}       what is served
POST /v1/completions                      completions.py
POST /v1/chat/completions                 chat.py
POST /v1/embeddings                       embeddings.py
GET  /healthz  /readyz  /metrics          for those who watch
GET  /  /page/{name}  /errors  /errors/{code}   for people
GET  /openapi.json                        all of this, for programs
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from windlass import __version__
from windlass.serve.gateway.access import Access
from windlass.serve.gateway.bodies import read
from windlass.serve.gateway.chat import converse
from windlass.serve.gateway.completions import complete
from windlass.serve.gateway.document import Documented
from windlass.serve.gateway.embeddings import embed
from windlass.serve.gateway.error_pages import error_response, errors_response
from windlass.serve.gateway.errors import ApiError, plain
from windlass.serve.gateway.guard import Guard, respond
from windlass.serve.gateway.messages import Asked, ChatRequest, CompletionRequest, EmbeddingRequest
from windlass.serve.gateway.pages import page_response
from windlass.serve.gateway.replies import (
    ChatReply,
    CompletionReply,
    EmbeddingReply,
    ErrorReply,
    Health,
    Model,
    ModelList,
)
from windlass.serve.gateway.service import Desk, Service
from windlass.spec.errors import did_you_mean

REFS = "#/components/schemas/{model}"
ASKED = (CompletionRequest, ChatRequest, EmbeddingRequest)

router = APIRouter()


def build_app(service: Service, access: Access) -> FastAPI:
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
    app.include_router(router)
    app.add_middleware(Guard, metrics=service.metrics, access=access)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    return app


class Gateway(Documented):
    """The API, with a description of the bodies that bodies.py reads."""

    def describe(self) -> dict[str, Any]:
        document = super().describe()
        _, asked = models_json_schema([(model, "validation") for model in ASKED], ref_template=REFS)
        document["components"]["schemas"].update(asked["$defs"])
        return document


def _body(model: type[Asked]) -> dict[str, Any]:
    schema = {"$ref": REFS.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _answers(model: type[Any], *, streams: bool = False) -> dict[int | str, dict[str, Any]]:
    stream = {"content": {"text/event-stream": {"schema": {"type": "string"}}}} if streams else {}
    return {200: {"model": model, **stream}, "4XX": {"model": ErrorReply}, "5XX": {"model": ErrorReply}}


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post(
    "/v1/completions",
    openapi_extra=_body(CompletionRequest),
    responses=_answers(CompletionReply, streams=True),
)
async def create_completion(request: Request) -> Response:
    """Continue one or more prompts; with stream: true, server-sent events of the same shape."""
    return await complete(request, await read(request, CompletionRequest), _service(request))


@router.post(
    "/v1/chat/completions", openapi_extra=_body(ChatRequest), responses=_answers(ChatReply, streams=True)
)
async def create_chat_completion(request: Request) -> Response:
    """Give the next turn of a conversation; with stream: true, server-sent events of chunks."""
    return await converse(request, await read(request, ChatRequest), _service(request))


@router.post("/v1/embeddings", openapi_extra=_body(EmbeddingRequest), responses=_answers(EmbeddingReply))
async def create_embedding(request: Request) -> Response:
    """Turn each input into one unit vector."""
    return await embed(request, await read(request, EmbeddingRequest), _service(request))


@router.get("/v1/models", responses=_answers(ModelList))
async def list_models(request: Request) -> Response:
    """List what is served: models, each followed by its adapters."""
    return _json(ModelList(object="list", data=[_model(desk) for desk in _service(request).desks()]))


@router.get("/v1/models/{model:path}", responses=_answers(Model))
async def show_model(request: Request, model: str) -> Response:
    """Show a model or an adapter, by any of its names."""
    return _json(_model(_service(request).desk(model)))


@router.head("/healthz", include_in_schema=False)
@router.get("/healthz", responses=_answers(Health))
async def show_health(request: Request) -> Response:
    """Say that the gateway process lives."""
    return _json(Health(status="ok"))


@router.head("/readyz", include_in_schema=False)
@router.get("/readyz", responses=_answers(Health))
async def show_readiness(request: Request) -> Response:
    """Say that the engine is connected and has introduced itself; otherwise 503."""
    _service(request).fleet.check_ready()
    return _json(Health(status="ready"))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(request: Request) -> Response:
    """Give the figures, as Prometheus reads them."""
    media_type = "text/plain; version=0.0.4; charset=utf-8"
    return Response(_service(request).metrics.text(), media_type=media_type)


@router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
async def show_page(request: Request) -> Response:
    return _found(page_response(request, "index.html"))


@router.api_route("/page/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def show_file(request: Request, name: str) -> Response:
    return _found(page_response(request, name))


@router.api_route("/errors", methods=["GET", "HEAD"], include_in_schema=False)
async def show_errors(request: Request) -> Response:
    return errors_response(request)


@router.api_route("/errors/{code}", methods=["GET", "HEAD"], include_in_schema=False)
async def show_error(request: Request, code: str) -> Response:
    return _found(error_response(request, code))


def _found(response: Response | None) -> Response:
    if response is None:
        raise HTTPException(404)
    return response


def _model(desk: Desk) -> Model:
    offered = desk.offered if desk.is_ready else None
    return Model(
        id=desk.id,
        object="model",
        created=desk.served.created,
        owned_by="windlass",
        parent=desk.served.id if desk.adapter else None,
        context_length=offered.context if offered else None,
        parameters=offered.parameters or None if offered else None,
        family=offered.family if offered else None,
    )


def _json(reply: ModelList | Model | Health) -> Response:
    return Response(reply.model_dump_json(), media_type="application/json")


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Hold the connections to the engines for as long as the app runs."""
    running = asyncio.create_task(app.state.service.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return respond(error, request.state.request_id)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Say the framework's own refusals (no such path, wrong method) in our envelope."""
    assert isinstance(error, HTTPException)
    path = plain(request.url.path, 100)
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request.url.path)))
        response = respond(
            ApiError("method_not_allowed", f"{request.method[:20]} {path} is not possible; use {allowed}"),
            request.state.request_id,
        )
        response.headers["allow"] = allowed
        return response
    hint = did_you_mean(path, [route.path for route in router.routes if isinstance(route, APIRoute)])
    return respond(ApiError("not_found", f"there is no path {path}; {hint}"), request.state.request_id)


def _methods(path: str) -> set[str]:
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    return {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
