"""Takes the busiest routes past the framework: their endpoints need nothing of what it does for others.

Routes are declared with FastAPI, and so are in the OpenAPI document. On the way to one of them FastAPI walks
through several layers and matches every route in turn, opens two stacks for dependencies and looks for
parameters to inject, which costs more than all of our own checks together. A path without parameters, whose
endpoint takes the request and returns the response, is found in a table instead. What it raises is told by
the same handlers.
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
"""Those of the application, by exception; by status, too, but a busy route never raises one."""


class Shortcut:
    """ASGI middleware, right inside the guard."""

    def __init__(self, app: ASGIApp, routes: Iterable[APIRoute], handlers: Handlers) -> None:
        self._app = app
        self._routes = {route.path: route for route in routes}
        self._handlers: dict[type[Exception], Handler] = {
            kind: handler for kind, handler in handlers.items() if isinstance(kind, type)
        }
        self._foreseen = tuple(self._handlers)

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
        except self._foreseen as error:
            return await self._handler(error)(request, error)
        return response

    def _handler(self, error: Exception) -> Handler:
        return next(handler for kind, handler in self._handlers.items() if isinstance(error, kind))
