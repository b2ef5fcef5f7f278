"""The control API: what `windlass jobs`, `models` and `plan` do, over HTTP, for pages and programs.

GET  /v1/jobs                                    all runs
GET  /v1/jobs/{name}/{number}                    the state of one run
GET  /v1/jobs/{name}/{number}/journal            its records; or as server-sent events while it runs
GET  /v1/jobs/{name}/{number}/audit              whether every sample was used exactly once
GET  /v1/jobs/{name}/{number}/goodput            where every second went
GET  /v1/jobs/{name}/{number}/incidents          what went wrong, as sentences
POST /v1/jobs/{name}/{number}/set                change settings
POST /v1/jobs/{name}/{number}/scale              change the number of workers
POST /v1/jobs/{name}/{number}/pause|resume|stop|undo
/v1/models...                                    models.py: the registry
/v1/plan...                                      plans.py: the planner
/v1/queue... /v1/shares... /v1/plane             queue.py: the job queue of the cluster
GET  /healthz                                    without a key
GET  /openapi.json                               the OpenAPI document

Routes only translate; what may be changed is decided in runs/run_settings.py, as for the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, FastAPI, Query
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from windlass import __version__
from windlass.control.api import models, plans, queue
from windlass.control.api.bodies import OwnRoute, body_of, home_of, read_body, tenant_context, with_rights
from windlass.control.api.control_errors import ControlError, refusal
from windlass.control.api.control_keys import ControlKeys, GatewayKey
from windlass.control.api.journal import finite, follow, read_records
from windlass.control.api.middleware import ControlMiddleware
from windlass.control.api.planner_pool import Planners
from windlass.control.plane.control_plane import ControlPlane
from windlass.control.tenants.impersonate import sound
from windlass.control.tenants.tenant_registry import TenantRegistry
from windlass.http.error_reply import respond
from windlass.http.errors import plain
from windlass.http.openapi import Documented
from windlass.runs.audit import audit
from windlass.runs.goodput import goodput
from windlass.runs.incidents import incidents
from windlass.runs.run_settings import pause, request_settings, scale, stop, undo, unpause
from windlass.runs.run_status import RunState, all_runs, facts_of, find_run, journal_of, state_of
from windlass.runs.training import RunFolder
from windlass.spec.errors import NotFound, WindlassError, did_you_mean
from windlass.spec.protocol.control import (
    AuditReply,
    ControlHealth,
    ControlRefusal,
    GoodputReply,
    Incidents,
    JobList,
    JobReply,
    JournalPart,
    Nothing,
    PlanBody,
    PromoteBody,
    ScaleBody,
    Scaled,
    SetBody,
    SettingsRequested,
    Value,
)
from windlass.spec.protocol.queue import PriorityBody, QueueBody, ShareBody
from windlass.spec.settings import Settings

T = TypeVar("T")

MAX_RECORDS = 10_000
BODIES = (SetBody, ScaleBody, PlanBody, PromoteBody, Nothing, QueueBody, PriorityBody, ShareBody)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

Name = Annotated[str, InPath(description="the job's name")]
Number = Annotated[str, InPath(description="which of its runs, from 1")]

router = APIRouter(
    route_class=OwnRoute, responses={"4XX": {"model": ControlRefusal}, "5XX": {"model": ControlRefusal}}
)
ROUTERS = (router, models.router, plans.router, queue.router)


def build_app(
    home: Path, *, loopback: bool = True, keys: GatewayKey | None = None, plane: ControlPlane | None = None
) -> FastAPI:
    """Build the app with its routes and middleware, for the runs of one home; `keys` default to the home's.

    With a `plane` there is a queue, too; its threads run as long as the app.
    """
    app = ControlApi(
        title="Windlass control",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.home, app.state.plane = home, plane
    app.state.tenants = TenantRegistry(home) if plane is None else plane.tenants
    for each in ROUTERS:
        app.include_router(each)
    app.add_middleware(ControlMiddleware, keys=keys or ControlKeys(home), loopback=loopback)
    app.add_exception_handler(WindlassError, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_wrong_query)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run the planner pool and the control plane for as long as the app runs."""
    app.state.planners = Planners()
    plane: ControlPlane | None = app.state.plane
    if plane is not None:
        plane.start()
    try:
        yield
    finally:
        app.state.planners.close()
        if plane is not None:
            await run_in_threadpool(plane.close)


class ControlApi(Documented):
    """The API, with a key required on every route but one."""

    def describe(self) -> dict[str, Any]:
        document = super().describe()
        for body in BODIES:
            document["components"]["schemas"][body.__name__] = body.model_json_schema()
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
        return document


@router.get("/healthz")
async def show_health() -> ControlHealth:
    """Report that the process is alive; the only route without a key."""
    return ControlHealth()


@router.get("/v1/jobs")
def list_jobs(request: Request) -> JobList:
    """List all runs and their states."""
    states = [state_of(folder) for folder in all_runs(home_of(request))]
    return JobList(jobs=[_reply(state) for state in states])


@router.get("/v1/jobs/{name}/{number}")
def show_job(request: Request, name: Name, number: Number) -> JobReply:
    """Show the state of a run, what was changed in it and by whom."""
    return _reply(state_of(_folder(request, name, number)))


@router.get(
    "/v1/jobs/{name}/{number}/journal",
    response_model=JournalPart,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def show_journal(
    request: Request,
    name: Name,
    number: Number,
    after: Annotated[int, Query(ge=0, description="skip this many records")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_RECORDS, description="at most this many records")] = 1000,
) -> JournalPart | Response:
    """Read the journal of a run. With `Accept: text/event-stream`, record by record until the run ends."""

    def rights(work: Callable[[], T]) -> T:
        return with_rights(request, work)

    folder = await run_in_threadpool(rights, lambda: _folder(request, name, number))
    if "text/event-stream" in request.headers.get("accept", ""):
        return follow(folder, max(after, _last_event(request)), rights)
    records = await run_in_threadpool(rights, lambda: read_records(folder, after, limit))
    return JournalPart(records=records, next=after + len(records))


@router.get("/v1/jobs/{name}/{number}/audit")
def audit_job(request: Request, name: Name, number: Number) -> AuditReply:
    """Check in the ledger that every sample was used exactly once, or name those that were not."""
    found = audit(_folder(request, name, number).path)
    return AuditReply(ok=found.ok, facts=finite(found.facts()))


@router.get("/v1/jobs/{name}/{number}/goodput")
def show_goodput(request: Request, name: Name, number: Number) -> GoodputReply:
    """Show where every second of a run went."""
    return GoodputReply.model_validate(goodput(journal_of(_folder(request, name, number))).facts())


@router.get("/v1/jobs/{name}/{number}/incidents")
def list_incidents(request: Request, name: Name, number: Number) -> Incidents:
    """List what went wrong in a run, when it was detected, what was done and what it cost."""
    found = incidents(journal_of(_folder(request, name, number)))
    return Incidents(incidents=[finite(incident.facts()) for incident in found])


@router.post("/v1/jobs/{name}/{number}/set", openapi_extra=body_of(SetBody))
async def set_job(request: Request, name: Name, number: Number) -> SettingsRequested:
    """Change settings of a run, from its next step on."""
    body = await read_body(request, SetBody)
    wanted = [assignment(key, value) for key, value in body.changes.items()]
    return await _request_change(
        request, name, number, lambda folder, by: request_settings(folder, wanted, by=by)
    )


@router.post("/v1/jobs/{name}/{number}/scale", openapi_extra=body_of(ScaleBody))
async def scale_job(request: Request, name: Name, number: Number) -> Scaled:
    """Change the number of workers of an elastic run."""
    body = await read_body(request, ScaleBody)

    def work() -> Scaled:
        folder = _folder(request, name, number)
        scale(folder, body.workers, by=request.state.key.name)
        return Scaled(run=folder.name, workers=body.workers)

    return await run_in_threadpool(with_rights, request, work)


@router.post("/v1/jobs/{name}/{number}/pause", openapi_extra=body_of(Nothing, required=False))
async def pause_job(request: Request, name: Name, number: Number) -> SettingsRequested:
    """Pause a run before its next step."""
    await read_body(request, Nothing)
    return await _request_change(request, name, number, lambda folder, by: pause(folder, by=by))


@router.post("/v1/jobs/{name}/{number}/resume", openapi_extra=body_of(Nothing, required=False))
async def resume_job(request: Request, name: Name, number: Number) -> SettingsRequested:
    """Resume a paused run."""
    await read_body(request, Nothing)
    return await _request_change(request, name, number, lambda folder, by: unpause(folder, by=by))


@router.post("/v1/jobs/{name}/{number}/stop", openapi_extra=body_of(Nothing, required=False))
async def stop_job(request: Request, name: Name, number: Number) -> SettingsRequested:
    """Let a run save a checkpoint and end."""
    await read_body(request, Nothing)
    return await _request_change(request, name, number, lambda folder, by: stop(folder, by=by))


@router.post("/v1/jobs/{name}/{number}/undo", openapi_extra=body_of(Nothing, required=False))
async def undo_job(request: Request, name: Name, number: Number) -> SettingsRequested:
    """Undo the last change of settings."""
    await read_body(request, Nothing)
    return await _request_change(request, name, number, lambda folder, by: undo(folder, by=by))


def assignment(key: str, value: Value) -> str:
    """Write a change as the command line does, so that both are checked by the same rules."""
    if "=" in key:
        raise ControlError("refused", f"'{plain(key, 100)}': write it as TABLE.KEY, without '='")
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


async def _request_change(
    request: Request, name: str, number: str, ask: Callable[[RunFolder, str], Settings]
) -> SettingsRequested:
    def work() -> SettingsRequested:
        folder = _folder(request, name, number)
        return SettingsRequested(run=folder.name, request=ask(folder, request.state.key.name))

    return await run_in_threadpool(with_rights, request, work)


def _folder(request: Request, name: str, number: str) -> RunFolder:
    """Find a run; invalid names are refused without a lookup."""
    if not _NAME.fullmatch(name) or not _NUMBER.fullmatch(number):
        raise NotFound(f"there is no run {plain(name, 100)}/{plain(number, 20)}")
    folder, context = find_run(home_of(request), f"{name}/{number}"), tenant_context(request)
    if context is not None:
        sound(folder.path, context.home)
    return folder


def _reply(state: RunState) -> JobReply:
    return JobReply.model_validate(finite(facts_of(state)))


def _last_event(request: Request) -> int:
    """Return the number of records that a reconnecting client already has."""
    given = request.headers.get("last-event-id", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 16 else 0


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WindlassError)
    return respond(refusal(error), request.state.request_id)


async def _on_wrong_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = plain(str(first["loc"][-1]), 40)
    return respond(
        ControlError("refused", f"'{name}': {first['msg'][0].lower()}{first['msg'][1:]}"),
        request.state.request_id,
    )


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Put the framework's own errors (no such path, wrong method) into the envelope of the API."""
    assert isinstance(error, HTTPException)
    path = plain(request.url.path, 100)
    if error.status_code == 405:
        response = respond(
            ControlError("method_not_allowed", f"{request.method[:20]} {path} is not supported"),
            request.state.request_id,
        )
        response.headers.update(error.headers or {})
        return response
    known = [str(getattr(route, "path", "")) for each in ROUTERS for route in each.routes]
    hint = did_you_mean(path, known)
    return respond(ControlError("not_found", f"there is no path {path}", hint=hint), request.state.request_id)
