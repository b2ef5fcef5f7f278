"""GET /admin/limits: the state of every budget that a gateway has used.

Limits are changed with their tenant or key.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.openapi import gives
from windlass.serve.gateway.admin.replies import BudgetList, BudgetReply
from windlass.serve.gateway.admin.shared import act, bound_of, json_reply, state_of
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.quotas import known_budgets, quota_states

router = APIRouter()


@router.get("/admin/limits", responses=gives(BudgetList))
async def list_limits(request: Request) -> Response:
    """List the budgets of the service, of tenants and of keys, and what is left; a tenant sees its own."""
    state, bound = state_of(request), bound_of(request)

    def read_budgets() -> list[BudgetReply]:
        rules = known_budgets(state)
        own = (
            None
            if bound is None
            else {f"tenant:{bound}", *(f"key:{k.id}" for k in ApiKeys(state).list(bound))}
        )
        return [
            BudgetReply(
                scope=standing.name.scope,
                kind=standing.name.kind,
                capacity=rules[standing.name].capacity,
                left=standing.left,
                lent=standing.lent,
                gateways=standing.holders,
            )
            for standing in quota_states(state, rules)
            if own is None or standing.name.scope in own
        ]

    return json_reply(BudgetList(object="list", data=await act(read_budgets)))
