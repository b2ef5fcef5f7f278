"""The job queue in the control API: jobs run on the cluster when there is capacity.

POST /v1/queue                         submit a job or a service; `Idempotency-Key` makes a repeat harmless
GET  /v1/queue                         jobs, oldest first, page by page
GET  /v1/queue/{name}                  one job: the newest of that name, or by its uid
GET  /v1/queue/{name}/events           what happened to it, as sentences
GET  /v1/queue/{name}/explain          why it waits
GET  /v1/queue/{name}/journal          the journal of its run
POST /v1/queue/{name}/stop             remove it from the queue, or let it save and end
POST /v1/queue/{name}/priority         change its priority
GET  /v1/shares, PUT /v1/shares/{t}    quotas and weights of tenants
GET  /v1/plane                         the leader, and how its last step went

A tenant's key sees and changes only that tenant's jobs; any other key is an administrator's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi import Path as InPath
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from windlass.control.api.bodies import body_of, read_body
from windlass.control.api.control_errors import ControlError
from windlass.control.api.journal import read_records
from windlass.control.plane.control_plane import ControlPlane
from windlass.control.plane.job_store import QueuePosition
from windlass.control.plane.job_to_group import submission_of
from windlass.control.plane.leader_lease import leader
from windlass.control.plane.queued_job import PLACED, JobEntry
from windlass.control.scheduler.snapshot import QuotaLimit, TenantQuota
from windlass.control.tenants.impersonate import as_user, inside, small_json, sound
from windlass.control.tenants.policy import check_priority
from windlass.control.tenants.tenant_registry import TenantContext
from windlass.http.errors import plain
from windlass.runs.training import RunFolder
from windlass.spec.errors import NotFound
from windlass.spec.protocol.control import ControlRefusal, JournalPart, Nothing
from windlass.spec.protocol.queue import (
    Explained,
    PlaneReply,
    PriorityBody,
    QueueBody,
    QueuedJob,
    QueueEvent,
    QueueEvents,
    QueueList,
    ShareBody,
    ShareList,
    ShareReply,
)
from windlass.spec.run import RUN_FILE
from windlass.spec.tenancy import DEFAULT, Allowance

MAX_PAGE = 1000
AHEAD = 10
LAUNCHES = "launches"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_TENANT = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_TOKEN = re.compile(r"[\x21-\x7e]{1,200}")
_KEY = re.compile(r"(?<![\w/.-])([a-z0-9][-a-z0-9]{0,51})/[a-z0-9][a-z0-9._-]{0,62}")
_AFTER = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)_([A-Za-z0-9]{1,40})")

Name = Annotated[str, InPath(description="the job's name, or its uid")]
OfTenant = Annotated[str | None, Query(description="whose jobs; for administrators' keys")]

router = APIRouter(responses={"4XX": {"model": ControlRefusal}, "5XX": {"model": ControlRefusal}})


@router.post("/v1/queue", status_code=201, openapi_extra=body_of(QueueBody))
async def submit(request: Request, response: Response) -> QueuedJob:
    """Put a job into the queue: 201, or 200 if the same request was sent before."""
    body = await read_body(request, QueueBody)
    plane, token = plane_of(request), _token(request)

    def work() -> tuple[JobEntry, bool]:
        context = plane.tenants.context(tenant_of(request, body.tenant) or DEFAULT)
        check_room(plane, context)
        return plane.records.submit(submission_of(body, context, request.state.key.name, token))

    entry, new = await run_in_threadpool(work)
    response.status_code = 201 if new else 200
    plane.poke()
    return _reply(request, entry, None)


@router.get("/v1/queue")
def list_queue(
    request: Request,
    tenant: OfTenant = None,
    phase: Annotated[str | None, Query(description="only these, e.g. queued,running")] = None,
    after: Annotated[str | None, Query(max_length=60, description="`next` of the page before")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="jobs on a page")] = 100,
) -> QueueList:
    """List jobs, oldest first, with the place and the reason of those that wait."""
    records = plane_of(request).records
    phases = tuple(phase.split(",")) if phase else ()
    if unknown := [each for each in phases if each not in PHASES]:
        raise ControlError("refused", f"no phase '{plain(unknown[0], 40)}'", hint=", ".join(PHASES))
    found = records.list(
        tenant=tenant_of(request, tenant), phases=phases, after=_after(after), limit=limit + 1
    )
    page = found[:limit]
    waits = records.waits([entry.uid for entry in page if entry.phase == "queued"])
    cursor = f"{page[-1].submitted_s!r}_{page[-1].uid}" if len(found) > limit else None
    return QueueList(jobs=[_reply(request, entry, waits.get(entry.uid)) for entry in page], next=cursor)


@router.get("/v1/queue/{name}")
def show_queued(request: Request, name: Name, tenant: OfTenant = None) -> QueuedJob:
    """Show a job."""
    return _replied(request, _entry(request, name, tenant))


@router.get("/v1/queue/{name}/events")
def list_events(
    request: Request,
    name: Name,
    tenant: OfTenant = None,
    after: Annotated[int, Query(ge=0, description="`next` of the answer before")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE,
) -> QueueEvents:
    """List what happened to a job."""
    entry = _entry(request, name, tenant)
    events = plane_of(request).records.events(entry.uid, after=after, limit=limit)
    own = request.state.key.tenant
    shown = [QueueEvent(number=e.number, at_s=e.at_s, by=e.by, what=redacted(e.what, own)) for e in events]
    return QueueEvents(events=shown, next=events[-1].number if events else after)


@router.get("/v1/queue/{name}/explain")
def explain(request: Request, name: Name, tenant: OfTenant = None) -> Explained:
    """Explain why a job waits: what is missing, which jobs are ahead, and which run now."""
    records, entry = plane_of(request).records, _entry(request, name, tenant)
    own = request.state.key.tenant
    job = _replied(request, entry)
    queued = records.list(phases=("queued",), limit=MAX_PAGE)
    waits = records.waits([each.uid for each in queued])
    places = {each.key: waits[each.uid].place for each in queued if each.uid in waits}
    before = sorted((place, key) for key, place in places.items() if job.place and place < job.place)
    running: dict[str, int] = {}
    for each in records.list(phases=tuple(PLACED), limit=MAX_PAGE):
        whose = each.tenant if own in (None, each.tenant) else "others"
        running[whose] = running.get(whose, 0) + 1
    ahead = [key if own in (None, key.partition("/")[0]) else "another tenant's" for _, key in before[:AHEAD]]
    share = records.shares().get(entry.tenant, TenantQuota(entry.tenant))
    return Explained(job=job, text=_sentence(job), ahead=ahead, running=running, share=_share(share))


@router.get("/v1/queue/{name}/journal")
def show_run_journal(
    request: Request,
    name: Name,
    tenant: OfTenant = None,
    after: Annotated[int, Query(ge=0, description="skip this many records")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> JournalPart:
    """Read the journal of a job's run; empty while it has none."""
    plane, entry = plane_of(request), _entry(request, name, tenant)
    context = plane.tenants.context(entry.tenant)
    with as_user(context.uid):
        folder = _run_of(entry, context)
        records = [] if folder is None else read_records(folder, after, limit)
    return JournalPart(records=records, next=after + len(records))


@router.post("/v1/queue/{name}/stop", openapi_extra=body_of(Nothing, required=False))
async def stop_queued(request: Request, name: Name, tenant: OfTenant = None) -> QueuedJob:
    """Remove a job from the queue; a running job saves a checkpoint and ends."""
    await read_body(request, Nothing)
    plane = plane_of(request)

    def work() -> JobEntry:
        return plane.records.stop(_entry(request, name, tenant).uid, request.state.key.name)

    entry = await run_in_threadpool(work)
    plane.poke()
    return _reply(request, entry, None)


@router.post("/v1/queue/{name}/priority", openapi_extra=body_of(PriorityBody))
async def set_priority(request: Request, name: Name, tenant: OfTenant = None) -> QueuedJob:
    """Change the priority of a job."""
    body = await read_body(request, PriorityBody)
    plane = plane_of(request)

    def work() -> JobEntry:
        entry = _entry(request, name, tenant)
        if entry.tenant != DEFAULT:
            allowance = plane.tenants.context(entry.tenant).allowance
            check_priority(body.priority, entry.tenant, allowance, "priority")
        return plane.records.set_priority(entry.uid, body.priority, request.state.key.name)

    entry = await run_in_threadpool(work)
    plane.poke()
    return _reply(request, entry, None)


@router.get("/v1/shares")
def list_shares(request: Request) -> ShareList:
    """List the quotas and recent usage of tenants; a tenant sees its own."""
    own, found = request.state.key.tenant, plane_of(request).records.shares()
    return ShareList(shares=[_share(found[t]) for t in sorted(found) if own in (None, t)])


@router.put("/v1/shares/{tenant}", openapi_extra=body_of(ShareBody))
async def set_share(request: Request, tenant: Annotated[str, InPath(description="whose")]) -> ShareReply:
    """Set the quota and weight of a tenant. For administrators."""
    body = await read_body(request, ShareBody)
    if request.state.key.tenant not in (None, tenant):
        raise NotFound(f"there is no tenant '{plain(tenant, 60)}'")
    if request.state.key.tenant is not None:
        raise ControlError("forbidden", "a tenant may not change its own quota")
    if not _TENANT.fullmatch(tenant):
        raise ControlError("refused", f"'{plain(tenant, 60)}' is not a tenant name", hint="a-z, 0-9 and '-'")
    quota = QuotaLimit(body.cores, body.memory_bytes, body.gpus)
    share = TenantQuota(tenant, body.weight, quota, body.jobs, body.priority)
    plane = plane_of(request)

    def work() -> None:
        plane.tenants.allow(tenant, lambda old: _allowed(old, body), request.state.key.name)
        plane.records.set_share(share)

    await run_in_threadpool(work)
    plane.poke()
    return _share(share)


@router.get("/v1/plane")
def show_plane(request: Request) -> PlaneReply:
    """Show the leader, how many jobs are in each phase, and what went wrong last."""
    plane = plane_of(request)
    epoch, holder, address = leader(plane.database)
    return PlaneReply(
        leader=address or holder,
        epoch=epoch,
        leads=plane.leads(),
        backend=plane.config.backend_name,
        phases=plane.records.counts(request.state.key.tenant),
        trouble=_trouble(plane, request.state.key.tenant),
        step_s=plane.step_s,
    )


def check_room(plane: ControlPlane, context: TenantContext) -> None:
    """Refuse a tenant that is suspended, exceeds its disk quota, or has too many unfinished jobs."""
    if not plane.tenants.is_open(context.tenant):
        raise ControlError(
            "forbidden", f"tenant '{context.tenant}' is suspended", hint="ask an administrator"
        )
    limit = context.allowance.quota.max_waiting
    if context.tenant != DEFAULT and plane.records.unfinished(context.tenant) >= limit:
        raise ControlError(
            "too_many_requests",
            f"tenant '{context.tenant}' already has {limit} jobs that wait or run",
            hint="stop some of them",
        )
    context.check_disk()


def redacted(text: str, own: str | None) -> str:
    """Hide the names of other tenants' jobs from a tenant; administrators see the whole text."""
    if own is None:
        return text
    return _KEY.sub(lambda key: key[0] if key[1] == own else "a job of another tenant", text)


def _trouble(plane: ControlPlane, own: str | None) -> str:
    text = plane.last.trouble if plane.last else ""
    return text if own is None or not text else "the last step was incomplete; administrators see why"


def _allowed(old: Allowance, body: ShareBody) -> Allowance:
    amounts = {"cores": body.cores, "memory": body.memory_bytes or None, "gpus": body.gpus, "jobs": body.jobs}
    quota = old.quota.model_copy(update=amounts)
    return old.model_copy(update={"quota": quota, "weight": body.weight, "priority": body.priority})


def _run_of(entry: JobEntry, context: TenantContext) -> RunFolder | None:
    """Return the run of a job. The note of its processes is untrusted input from the tenant."""
    note = inside(context.home / LAUNCHES / entry.group / "run.json", context.home)
    noted = small_json(note) if note.is_file() else None
    if not isinstance(noted, str):
        return None
    folder = RunFolder(inside(Path(noted), context.home))
    if context.tenant != DEFAULT:
        sound(folder.path, context.home)
    return folder if (folder.path / RUN_FILE).exists() else None


def plane_of(request: Request) -> ControlPlane:
    """Return the control plane of this process, or refuse."""
    plane: ControlPlane | None = getattr(request.app.state, "plane", None)
    if plane is None:
        raise ControlError("not_found", "there is no queue here", hint="`windlass control` has one")
    return plane


def tenant_of(request: Request, requested: str | None) -> str | None:
    """Return the key's tenant, or for administrators the requested one."""
    own: str | None = request.state.key.tenant
    if own is not None:
        if requested not in (None, own):
            raise NotFound(f"there is no tenant '{plain(requested or '', 60)}'")
        return own
    if requested is not None and not _TENANT.fullmatch(requested):
        raise ControlError(
            "refused", f"'{plain(requested, 60)}' is not a tenant name", hint="a-z, 0-9 and '-'"
        )
    return requested


PHASES = ("queued", "admitted", "running", "preempting", "stopping", "done", "failed", "stopped")


def _entry(request: Request, name: str, tenant: str | None) -> JobEntry:
    if not _NAME.fullmatch(name):
        raise NotFound(f"no job '{plain(name, 100)}' in the queue")
    return plane_of(request).records.find(name, tenant_of(request, tenant))


def _replied(request: Request, entry: JobEntry) -> QueuedJob:
    waits = plane_of(request).records.waits([entry.uid]) if entry.phase == "queued" else {}
    return _reply(request, entry, waits.get(entry.uid))


def _reply(request: Request, entry: JobEntry, wait: QueuePosition | None) -> QueuedJob:
    facts = entry.facts()
    if entry.phase == "queued":
        facts["reason"] = (
            wait.reason if wait is not None else entry.reason or "the scheduler has not looked at it yet"
        )
    place = wait.place if wait is not None and entry.phase == "queued" else None
    facts["reason"] = redacted(facts["reason"], request.state.key.tenant)
    return QueuedJob.model_validate({**facts, "place": place})


def _share(share: TenantQuota) -> ShareReply:
    return ShareReply(
        tenant=share.tenant,
        weight=share.weight,
        cores=share.quota.cores,
        memory_bytes=share.quota.memory_bytes,
        gpus=share.quota.gpus,
        jobs=share.max_jobs,
        priority=share.max_priority,
        used=share.used,
    )


def _sentence(job: QueuedJob) -> str:
    if job.phase != "queued":
        return f"it does not wait; it is {job.phase}" + (f": {job.reason}" if job.reason else "")
    place = f"number {job.place} in the queue: " if job.place else ""
    return f"{place}{job.reason}"


def _token(request: Request) -> str:
    given = request.headers.get("idempotency-key", "")
    if given and not _TOKEN.fullmatch(given):
        raise ControlError("refused", "Idempotency-Key must be 1 to 200 visible ASCII characters")
    return given


def _after(cursor: str | None) -> tuple[float, str] | None:
    if cursor is None:
        return None
    found = _AFTER.fullmatch(cursor)
    if found is None:
        raise ControlError("refused", "'after' must be `next` of an earlier page")
    return float(found[1]), found[2]
