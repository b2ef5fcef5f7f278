"""GET /admin/limits: how every budget stands that a gateway has counted.

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
from windlass.serve.records.quotas import known_budgets, standings

router = APIRouter()


@router.get("/admin/limits", responses=gives(BudgetList))
async def list_limits(request: Request) -> Response:
    """List budgets of everybody, of tenants and of keys, and what is left of each; a tenant sees its own."""
    state, bound = state_of(request), bound_of(request)

    def look() -> list[BudgetReply]:
        rules = known_budgets(state)
        own = (
            None
            if bound is None
            else {f"tenant:{bound}", *(f"key:{k.id}" for k in ApiKeys(state).list(bound))}
        )
        return [
            BudgetReply(
                scope=each.name.scope,
                kind=each.name.kind,
                most=rules[each.name].most,
                left=each.left,
                lent=each.lent,
                gateways=each.holders,
            )
            for each in standings(state, rules)
            if own is None or each.name.scope in own
        ]

    return json_reply(BudgetList(object="list", data=await act(look)))
