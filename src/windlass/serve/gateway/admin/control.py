"""/admin/control/...: runs, registered models and plans, forwarded to the control process.

Only ROUTES are forwarded. Replies and errors are those of docs/formats/control.md: the gateway checks the
path and the size of the body, the control process the rest. A change is written to the audit log before it is
forwarded, and the run's journal names the key.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from windlass.http.error_reply import ErrorReply
from windlass.http.errors import ApiError, plain
from windlass.http.json_body import read_bytes
from windlass.http.openapi import QUERIES, REQUEST_ID, gives, refers, takes
from windlass.http.streaming import EventStream, while_connected
from windlass.serve.gateway.admin.shared import NO_STORE, actor_of, number_of, record, service_of
from windlass.serve.gateway.control_client import ControlReply, Upstream
from windlass.serve.records.audit_log import Act, Actor
from windlass.spec.protocol import control as protocol

ROOT = "/admin/control"
RUN = "/v1/jobs/{name}/{number}"
MODEL = "/v1/models/{name}"
MAX_BODY_BYTES = 64 << 10
MAX_RECORDS = 10_000
LAST_RECORD = 10**15
ANONYMOUS = "anyone"
"""The caller of a gateway without keys."""
STREAM = "text/event-stream"
SHAPES = {"name": "[a-z0-9][a-z0-9._-]{0,62}", "number": "[1-9][0-9]{0,8}"}
MEANINGS = {
    "name": "Name of the job, or of the model without its version.",
    "number": "Run of the job, from 1.",
}


@dataclass(frozen=True)
class ControlRoute:
    """One forwarded route; `action` is its name in the audit log, if it changes something."""

    method: str
    path: str
    name: str
    summary: str
    reply: type[BaseModel]
    body: type[protocol.ControlBody] | None = None
    action: str = ""
    streams: bool = False


ROUTES = (
    ControlRoute("GET", "/v1/jobs", "list_runs", "List all runs and their state.", protocol.JobList),
    ControlRoute(
        "GET", RUN, "show_run",
        "Show the state of a run, and its changes with their authors.", protocol.JobReply,
    ),
    ControlRoute(
        "GET", f"{RUN}/journal", "show_run_journal",
        "Read the journal of a run; with `Accept: text/event-stream`, record by record until it ends.",
        protocol.JournalPart, streams=True,
    ),
    ControlRoute(
        "GET", f"{RUN}/audit", "audit_run",
        "Check that every sample was used exactly once.", protocol.AuditReply,
    ),
    ControlRoute(
        "GET", f"{RUN}/goodput", "show_run_goodput",
        "Show how the time of a run was spent.", protocol.GoodputReply,
    ),
    ControlRoute(
        "GET", f"{RUN}/incidents", "list_run_incidents", "List the incidents of a run.", protocol.Incidents,
    ),
    ControlRoute(
        "POST", f"{RUN}/set", "set_run",
        "Change settings of a run.", protocol.SettingsRequested, protocol.SetBody, "run.set",
    ),
    ControlRoute(
        "POST", f"{RUN}/scale", "scale_run", "Change the number of workers of an elastic run.",
        protocol.Scaled, protocol.ScaleBody, "run.scale",
    ),
    ControlRoute(
        "POST", f"{RUN}/pause", "pause_run", "Pause a run.", protocol.SettingsRequested, None, "run.pause",
    ),
    ControlRoute(
        "POST", f"{RUN}/resume", "resume_run",
        "Resume a run.", protocol.SettingsRequested, None, "run.resume",
    ),
    ControlRoute(
        "POST", f"{RUN}/stop", "stop_run",
        "Save a checkpoint and stop a run.", protocol.SettingsRequested, None, "run.stop",
    ),
    ControlRoute(
        "POST", f"{RUN}/undo", "undo_run",
        "Undo the last change of a run.", protocol.SettingsRequested, None, "run.undo",
    ),
    ControlRoute(
        "GET", "/v1/models", "list_registered_models", "List the registered models.", protocol.RegistryReply,
    ),
    ControlRoute(
        "GET", MODEL, "show_registered_model",
        "Show the versions, aliases and lineage of a model.", protocol.ModelReply,
    ),
    ControlRoute(
        "POST", f"{MODEL}/promote", "promote_model",
        "Make a version @prod. Running services keep their version.",
        protocol.VersionReply, protocol.PromoteBody, "model.promote",
    ),
    ControlRoute(
        "POST", f"{MODEL}/rollback", "roll_back_model", "Make the version @previous @prod again.",
        protocol.VersionReply, None, "model.rollback",
    ),
    ControlRoute(
        "POST", "/v1/plan", "plan_job", "Plan a job for a fleet; without a solution, the reply says why.",
        protocol.PlanReply, protocol.PlanBody,
    ),
    ControlRoute(
        "GET", "/v1/plan/choices", "list_plan_choices",
        "List the devices and model sizes that the planner knows.", protocol.PlannerChoices,
    ),
)  # fmt: skip
BODIES = tuple(route.body for route in ROUTES if route.body is not None)

REFUSALS = {
    400: "Or the control process refuses it (`refused`): the message says why, the hint what to do.",
    404: "Or the control process does not know the run, model or version.",
    409: "Another process holds what this needs; retry.",
    500: "Or the control process failed; the message says where.",
}
"""Errors of the control process, in its own envelope."""

ERROR_CONTENT = refers(ErrorReply, protocol.ControlRefusal)

router = APIRouter()


def forwarder(route: ControlRoute) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that forwards a route."""

    async def forward(request: Request) -> Response:
        upstream, path = upstream_of(request), path_of(route, request)
        body = b"" if route.body is None else await read_bytes(request, MAX_BODY_BYTES)
        actor = await actor_of(request)
        if route.action:
            await audit(request, route, actor, body)
        headers = headers_of(route, request, actor)
        return await relay(request, upstream.request(route.method, path, headers, body))

    return forward


def upstream_of(request: Request) -> Upstream:
    upstream = service_of(request).control
    if upstream is None:
        raise ApiError("not_found", "this server runs without a control process")
    return upstream


def path_of(route: ControlRoute, request: Request) -> str:
    """Return the path for the control process, made of validated parts."""
    for part, value in request.path_params.items():
        if not re.fullmatch(SHAPES[part], value):
            raise ApiError("not_found", f"'{plain(value, 100)}' is not a valid {part} of a run or a model")
    path = route.path.format(**request.path_params)
    if not route.streams:
        return path
    after = number_of(request, "after", 0, 0, LAST_RECORD)
    return f"{path}?after={after}&limit={number_of(request, 'limit', 1000, 1, MAX_RECORDS)}"


def headers_of(route: ControlRoute, request: Request, actor: Actor) -> dict[str, str]:
    """Return the headers for the control process: the caller, the request id, and the accepted type."""
    headers = {
        "x-windlass-by": actor.name if actor.key_id else ANONYMOUS,
        "x-request-id": request.state.request_id,
    }
    if route.streams and STREAM in request.headers.get("accept", ""):
        headers["accept"] = STREAM
        seen = request.headers.get("last-event-id", "")
        if re.fullmatch("[0-9]{1,15}", seen):
            headers["last-event-id"] = seen
    return headers


async def audit(request: Request, route: ControlRoute, actor: Actor, body: bytes) -> None:
    """Write a change to the audit log; a gateway without a database has none."""
    target = "/".join(request.path_params.values())
    await record(request, actor, Act(route.action, target, "requested", body.decode("utf-8", "replace")))


async def relay(request: Request, pending: Awaitable[ControlReply]) -> Response:
    """Forward the reply; if the client disconnects, the work in the control process ends too."""
    answer = await while_connected(request, pending)
    if answer is None:
        raise ClientDisconnect
    if answer.status == 200 and answer.kind.startswith(STREAM):
        return EventStream(answer.stream(), request.state.request_id, answer.close)
    try:
        body = await while_connected(request, answer.whole())
    finally:
        answer.close()
    if body is None:
        raise ClientDisconnect
    if answer.status in (401, 403):
        raise ApiError("control_unavailable", "the control process refused the key of this gateway")
    return Response(body, answer.status, NO_STORE, media_type="application/json")


def parameters_of(route: ControlRoute) -> list[dict[str, Any]]:
    """Return the OpenAPI parameters of a path and its query."""
    parts = [
        _parameter(part, "path", {"type": "string", "pattern": f"^{SHAPES[part]}$"}, MEANINGS[part])
        for part in re.findall(r"{(\w+)}", route.path)
    ]
    if not route.streams:
        return parts
    after = {"type": "integer", "minimum": 0, "maximum": LAST_RECORD, "default": 0}
    limit = {"type": "integer", "minimum": 1, "maximum": MAX_RECORDS, "default": 1000}
    return [
        *parts,
        _parameter("after", "query", after, "Skip this many records."),
        _parameter("limit", "query", limit, "Maximum number of records; a stream ends with the run."),
    ]


def _parameter(name: str, where: str, schema: dict[str, Any], summary: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": summary}


def answers_of(route: ControlRoute) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses: those of the gateway, and those of the control process."""
    codes = ["control_unavailable", *(QUERIES if route.streams else ())]
    if route.body is not None:
        codes += ["body_timeout", "body_too_large", "unsupported_media_type"]
    answers = gives(route.reply, *codes, streams=route.streams)
    for status, meaning in REFUSALS.items():
        own = answers.get(status, {"headers": {"X-Request-Id": REQUEST_ID}, "description": ""})
        if status != 409 or route.method == "POST":
            words = f"{own['description']} {meaning}".strip()
            answers[status] = own | {"content": ERROR_CONTENT, "description": words}
    return answers


for _route in ROUTES:
    router.add_api_route(
        ROOT + _route.path,
        forwarder(_route),
        methods=[_route.method],
        name=_route.name,
        description=_route.summary,
        openapi_extra=takes(_route.body, parameters_of(_route)),
        responses=answers_of(_route),
    )
