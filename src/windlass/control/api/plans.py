"""Plans over the control API: what `windlass plan JOB --fleet F --json` prints.

POST /v1/plan                                    which layout, how long, how much; or why there is no solution
GET  /v1/plan/choices                            devices, published sizes, objectives, precisions
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from windlass.control.api.bodies import body_of, read_body
from windlass.control.api.journal import finite
from windlass.control.api.planner_pool import Planners
from windlass.plan.fleet.choices import choices
from windlass.spec.protocol.control import ControlRefusal, PlanBody, PlannerChoices, PlanReply

router = APIRouter(responses={"4XX": {"model": ControlRefusal}, "5XX": {"model": ControlRefusal}})


@router.post("/v1/plan", openapi_extra=body_of(PlanBody))
async def make_plan(request: Request) -> PlanReply:
    """Plan a job for a fleet; 'no solution' is a regular answer."""
    body = await read_body(request, PlanBody)
    planners: Planners = request.app.state.planners
    return PlanReply.model_validate(finite(await planners.plan(body, request.is_disconnected)))


@router.get("/v1/plan/choices")
def list_choices() -> PlannerChoices:
    """List the names that a plan request may use."""
    return PlannerChoices.model_validate(choices())
