"""Turns exceptions into error replies: API errors, unknown paths and methods, failures of the database."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from windlass.http.error_reply import respond
from windlass.http.errors import ApiError, plain
from windlass.serve.gateway.schemas.repair import with_correction
from windlass.spec.errors import Damaged, StoreFailed, did_you_mean

log = logging.getLogger(__name__)


def add_handlers(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Answer every failure with the error envelope; `routes` are all known paths, for hints."""
    app.state.routes = [route for route in routes if isinstance(route, APIRoute)]
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(StoreFailed, _on_store_failed)
    app.add_exception_handler(Damaged, _on_store_failed)


async def _on_api_error(request: Request, error: Exception) -> Response:
    """Send an API error, with a corrected body where there is only one way to correct it."""
    if not isinstance(error, ApiError):
        raise error
    return respond(with_correction(error, getattr(request.state, "body", None)), request.state.request_id)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Send the framework's own errors (unknown path, wrong method) in our envelope."""
    if not isinstance(error, HTTPException):
        raise error
    path = plain(request.url.path, 100)
    routes: list[APIRoute] = request.app.state.routes
    if error.status_code == 405:
        return _wrong_method(request, path, routes)
    hint = did_you_mean(path, [route.path for route in routes])
    return respond(ApiError("not_found", f"there is no path {path}; {hint}"), request.state.request_id)


async def _on_store_failed(request: Request, error: Exception) -> Response:
    """Reply that the database cannot be reached; the details go to the log."""
    log.error("%s: the database failed: %s", request.state.request_id, error)
    mistake = ApiError("state_unavailable", "the server cannot reach its records", retry_after_s=1)
    return respond(mistake, request.state.request_id)


def _wrong_method(request: Request, path: str, routes: list[APIRoute]) -> Response:
    found = (route.methods or () for route in routes if route.path_regex.match(request.url.path))
    allowed = ", ".join(sorted({method for methods in found for method in methods}))
    message = f"{plain(request.method, 20)} {path} is not possible; use {allowed}"
    response = respond(ApiError("method_not_allowed", message), request.state.request_id)
    response.headers["allow"] = allowed
    return response
