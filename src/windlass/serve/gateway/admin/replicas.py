"""GET /admin/replicas: the engines, as this gateway sees them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.openapi import gives
from windlass.serve.gateway.admin.replies import ReplicaList, ReplicaReply, RouteReply
from windlass.serve.gateway.admin.shared import json_reply, service_of

router = APIRouter()


@router.get("/admin/replicas", responses=gives(ReplicaList))
async def list_replicas(request: Request) -> Response:
    """Show the current routing table and the state of its replicas."""
    service = service_of(request)
    fleet = service.fleet
    replicas = [
        ReplicaReply(
            name=link.replica.name,
            models=link.replica.models,
            state=link.replica.state,
            connected=link.is_alive,
            answers=len(link.tasks),
        )
        for link in fleet.links
    ]
    routes = {
        name: RouteReply(weights=route.weights, shadow=route.shadow, standby=route.standby)
        for name, route in service.routes.items()
    }
    reply = ReplicaList(
        object="list", revision=fleet.revision, brownout=service.brownout, data=replicas, routes=routes
    )
    return json_reply(reply)
