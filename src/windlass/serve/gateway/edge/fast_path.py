"""Dispatches the busiest routes without FastAPI's overhead, which their endpoints do not need.

All routes are declared with FastAPI, so they are in the OpenAPI document. To dispatch a request FastAPI
passes it through several layers, matches every route in turn, opens two exit stacks for dependencies and
looks for parameters to inject; that costs more than all of our own checks together. Paths without parameters,
whose endpoint takes the request and returns the response, are found in a table instead. The same exception
handlers apply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request, Exception], Awaitable[Response]]
Handlers = Mapping[int | type[Exception], Any]
"""The application's exception handlers; those for a status code are not used here."""


class FastPath:
    """ASGI middleware, directly inside GatewayMiddleware."""

    def __init__(self, app: ASGIApp, routes: Iterable[APIRoute], handlers: Handlers) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}
        self._handlers: dict[type[Exception], Handler] = {
            kind: handler for kind, handler in handlers.items() if isinstance(kind, type)
        }
        self._handled = tuple(self._handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"]) if scope["type"] == "http" else None
        if route is None or scope["method"] not in (route.methods or ()):
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        response = await self._answer(route.endpoint, Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, endpoint: Callable[..., Any], request: Request) -> Response:
        try:
            response: Response = await endpoint(request)
        except self._handled as error:
            return await self._handler(error)(request, error)
        return response

    def _handler(self, error: Exception) -> Handler:
        return next(handler for kind, handler in self._handlers.items() if isinstance(error, kind))
