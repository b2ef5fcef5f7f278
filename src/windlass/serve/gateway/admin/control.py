"""/admin/control/...: runs, registered models and plans, passed on to the control process.

DOORS is all that is passed on: the answer to each is what docs/formats/control.md says, refusals included,
for what goes beyond a path and a size is checked there. What changes something is in the audit log before it
is asked for, and the run's journal names the key.
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
from windlass.spec.protocol import control as told

ROOT = "/admin/control"
RUN = "/v1/jobs/{name}/{number}"
MODEL = "/v1/models/{name}"
MAX_BODY_BYTES = 64 << 10
MAX_RECORDS = 10_000
LAST_RECORD = 10**15
NOBODY = "anyone"
"""Who asks a gateway without keys."""
STREAM = "text/event-stream"
SHAPES = {"name": "[a-z0-9][a-z0-9._-]{0,62}", "number": "[1-9][0-9]{0,8}"}
MEANINGS = {"name": "Of a job, or of a model without its version.", "number": "Which run of the job, from 1."}


@dataclass(frozen=True)
class ControlRoute:
    """One thing that is passed on; `action` is what the audit log calls it, where it changes something."""

    method: str
    path: str
    name: str
    about: str
    reply: type[BaseModel]
    body: type[told.ControlBody] | None = None
    action: str = ""
    streams: bool = False


DOORS = (
    ControlRoute("GET", "/v1/jobs", "list_runs", "List all runs and how they stand.", told.JobList),
    ControlRoute("GET", RUN, "show_run", "Show how a run stands, and what was changed in it by whom.", told.JobReply),
    ControlRoute(
        "GET", f"{RUN}/journal", "show_run_journal",
        "Read what a run told; with `Accept: text/event-stream`, record by record until it ends.",
        told.JournalPart, streams=True,
    ),
    ControlRoute("GET", f"{RUN}/audit", "audit_run", "Prove that every sample was used once.", told.AuditReply),
    ControlRoute("GET", f"{RUN}/goodput", "show_run_goodput", "Say where every second went.", told.GoodputReply),
    ControlRoute("GET", f"{RUN}/incidents", "list_run_incidents", "Say what went wrong in a run.", told.Incidents),
    ControlRoute("POST", f"{RUN}/set", "set_run", "Change settings of a run.", told.SettingsRequested, told.SetBody, "run.set"),
    ControlRoute(
        "POST", f"{RUN}/scale", "scale_run", "Change the number of workers of an elastic run.", told.Scaled,
        told.ScaleBody, "run.scale",
    ),
    ControlRoute("POST", f"{RUN}/pause", "pause_run", "Let a run wait.", told.SettingsRequested, None, "run.pause"),
    ControlRoute("POST", f"{RUN}/resume", "resume_run", "Let a run go on.", told.SettingsRequested, None, "run.resume"),
    ControlRoute("POST", f"{RUN}/stop", "stop_run", "Let a run save and end.", told.SettingsRequested, None, "run.stop"),
    ControlRoute("POST", f"{RUN}/undo", "undo_run", "Take the last change back.", told.SettingsRequested, None, "run.undo"),
    ControlRoute("GET", "/v1/models", "list_registered_models", "List registered models.", told.RegistryReply),
    ControlRoute("GET", MODEL, "show_registered_model", "Show versions, aliases, lineage.", told.ModelReply),
    ControlRoute(
        "POST", f"{MODEL}/promote", "promote_model", "Make a version @prod. What is served stays as it is.",
        told.VersionReply, told.PromoteBody, "model.promote",
    ),
    ControlRoute(
        "POST", f"{MODEL}/rollback", "roll_back_model", "Make @previous @prod again.", told.VersionReply,
        None, "model.rollback",
    ),
    ControlRoute(
        "POST", "/v1/plan", "plan_job", "Plan a job for a fleet. No solution is an answer, too.",
        told.PlanReply, told.PlanBody,
    ),
    ControlRoute("GET", "/v1/plan/choices", "list_plan_choices", "List devices and known sizes.", told.PlannerChoices),
)  # fmt: skip
BODIES = tuple(door.body for door in DOORS if door.body is not None)

REFUSALS = {
    400: "Or the control process refuses it (`refused`): the message says why, the hint what can be.",
    404: "Or the control process knows no such run, model or version.",
    409: "Somebody else holds what this needs right now; ask again.",
    500: "Or the control process failed; the message says at what.",
}
"""What the process itself answers where it refuses, in its own envelope."""

EITHER = refers(ErrorReply, told.ControlRefusal)

router = APIRouter()


def passes(door: ControlRoute) -> Callable[[Request], Awaitable[Response]]:
    """Return the route of a door."""

    async def pass_on(request: Request) -> Response:
        upstream, path = upstream_of(request), path_of(door, request)
        body = b"" if door.body is None else await read_bytes(request, MAX_BODY_BYTES)
        actor = await actor_of(request)
        if door.action:
            await write_down(request, door, actor, body)
        headers = headers_of(door, request, actor)
        return await relay(request, upstream.ask(door.method, path, headers, body))

    return pass_on


def upstream_of(request: Request) -> Upstream:
    upstream = service_of(request).control
    if upstream is None:
        raise ApiError("not_found", "this server runs without a control process")
    return upstream


def path_of(door: ControlRoute, request: Request) -> str:
    """Return the path for the process, made of parts that were looked at."""
    for part, value in request.path_params.items():
        if not re.fullmatch(SHAPES[part], value):
            raise ApiError("not_found", f"'{plain(value, 100)}' is no {part} that a run or a model can have")
    path = door.path.format(**request.path_params)
    if not door.streams:
        return path
    after = number_of(request, "after", 0, 0, LAST_RECORD)
    return f"{path}?after={after}&most={number_of(request, 'most', 1000, 1, MAX_RECORDS)}"


def headers_of(door: ControlRoute, request: Request, actor: Actor) -> dict[str, str]:
    """Return what the process must know beside the path: who asks, under which id, and how to answer."""
    headers = {
        "x-windlass-by": actor.name if actor.key_id else NOBODY,
        "x-request-id": request.state.request_id,
    }
    if door.streams and STREAM in request.headers.get("accept", ""):
        headers["accept"] = STREAM
        seen = request.headers.get("last-event-id", "")
        if re.fullmatch("[0-9]{1,15}", seen):
            headers["last-event-id"] = seen
    return headers


async def write_down(request: Request, door: ControlRoute, actor: Actor, body: bytes) -> None:
    """Put a change into the audit log; a gateway without a state has none."""
    target = "/".join(request.path_params.values())
    await record(request, actor, Act(door.action, target, "asked", body.decode("utf-8", "replace")))


async def relay(request: Request, asking: Awaitable[ControlReply]) -> Response:
    """Send the answer of the process as ours; a client that leaves ends it there, too."""
    answer = await while_connected(request, asking)
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
        raise ApiError("control_unavailable", "the control process does not know this gateway")
    return Response(body, answer.status, NO_STORE, media_type="application/json")


def parameters_of(door: ControlRoute) -> list[dict[str, Any]]:
    """Describe the parts of a path, and what a query may say."""
    parts = [
        _parameter(part, "path", {"type": "string", "pattern": f"^{SHAPES[part]}$"}, MEANINGS[part])
        for part in re.findall(r"{(\w+)}", door.path)
    ]
    if not door.streams:
        return parts
    after = {"type": "integer", "minimum": 0, "maximum": LAST_RECORD, "default": 0}
    most = {"type": "integer", "minimum": 1, "maximum": MAX_RECORDS, "default": 1000}
    return [
        *parts,
        _parameter("after", "query", after, "Leave out so many records from the first on."),
        _parameter("most", "query", most, "At most so many records; a stream has no end but the run's."),
    ]


def _parameter(name: str, where: str, schema: dict[str, Any], about: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": where == "path", "schema": schema, "description": about}


def answers_of(door: ControlRoute) -> dict[int | str, dict[str, Any]]:
    """Describe the answers: the gateway's own refusals, and those of the process."""
    codes = ["control_unavailable", *(QUERIES if door.streams else ())]
    if door.body is not None:
        codes += ["body_timeout", "body_too_large", "unsupported_media_type"]
    answers = gives(door.reply, *codes, streams=door.streams)
    for status, meaning in REFUSALS.items():
        own = answers.get(status, {"headers": {"X-Request-Id": REQUEST_ID}, "description": ""})
        if status != 409 or door.method == "POST":
            words = f"{own['description']} {meaning}".strip()
            answers[status] = own | {"content": EITHER, "description": words}
    return answers


for _door in DOORS:
    router.add_api_route(
        ROOT + _door.path,
        passes(_door),
        methods=[_door.method],
        name=_door.name,
        description=_door.about,
        openapi_extra=takes(_door.body, parameters_of(_door)),
        responses=answers_of(_door),
    )
