"""GET /admin/rollouts, POST /admin/rollouts and below: requests that the supervisor carries out."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.openapi import BODIES, gives, takes
from windlass.serve.gateway.admin.replies import RolloutList, RolloutReply
from windlass.serve.gateway.admin.requests import NewRollout
from windlass.serve.gateway.admin.shared import act, actor_of, json_reply, state_of
from windlass.serve.gateway.schemas.request_body import read
from windlass.serve.records.rollouts import Command, RolloutRecord, Rollouts

router = APIRouter()


@router.get("/admin/rollouts", responses=gives(RolloutList))
async def list_rollouts(request: Request) -> Response:
    """List roll-outs, the newest first."""
    found = await act(Rollouts(state_of(request)).list)
    return json_reply(RolloutList(object="list", data=[_reply(record) for record in found]))


@router.post(
    "/admin/rollouts", openapi_extra=takes(NewRollout), responses=gives(RolloutReply, *BODIES, "conflict")
)
async def start_rollout(request: Request) -> Response:
    """Start a roll-out of a registered version; the supervisor then checks whether it can be loaded."""
    body = await read(request, NewRollout)
    rollouts, by = Rollouts(state_of(request)), await actor_of(request)
    return json_reply(_reply(await act(lambda: rollouts.start(body.candidate, body.kind, body.policy, by))))


@router.get("/admin/rollouts/{rollout}", responses=gives(RolloutReply))
async def show_rollout(request: Request, rollout: str) -> Response:
    """Show a roll-out by its id, or the newest of a model by its name, with its report."""
    return json_reply(_reply(await act(lambda: Rollouts(state_of(request)).find(rollout))))


@router.post("/admin/rollouts/{rollout}/abort", responses=gives(RolloutReply, "invalid_value"))
async def abort_rollout(request: Request, rollout: str) -> Response:
    """Abort the roll-out: remove the new version."""
    return await _command(request, rollout, "abort")


@router.post("/admin/rollouts/{rollout}/promote", responses=gives(RolloutReply, "invalid_value"))
async def promote_rollout(request: Request, rollout: str) -> Response:
    """Promote the new version without waiting for evidence."""
    return await _command(request, rollout, "promote")


async def _command(request: Request, rollout: str, command: Command) -> Response:
    rollouts, by = Rollouts(state_of(request)), await actor_of(request)
    return json_reply(_reply(await act(lambda: rollouts.command(rollout, command, by))))


def _reply(record: RolloutRecord) -> RolloutReply:
    return RolloutReply(
        id=record.id,
        name=record.name,
        stable=record.stable,
        candidate=record.candidate,
        kind=record.kind,
        state=record.state,
        weight=record.weight,
        command=record.command,
        who=record.who,
        reason=record.reason,
        report=record.report,
        made_s=record.made,
        changed_s=record.changed,
    )
