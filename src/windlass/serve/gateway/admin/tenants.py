"""GET /admin/tenants, POST /admin/tenants and below: the tenants of the service."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.errors import ApiError, plain
from windlass.http.openapi import BODIES, gives, takes
from windlass.serve.gateway.admin.replies import ActionDone, TenantList, TenantReply
from windlass.serve.gateway.admin.requests import NewTenant, TenantChange
from windlass.serve.gateway.admin.shared import act, actor_of, bound_of, json_reply, state_of
from windlass.serve.gateway.schemas.request_body import read
from windlass.serve.records.tenants import Tenant, Tenants

router = APIRouter()


@router.get("/admin/tenants", responses=gives(TenantList))
async def list_tenants(request: Request) -> Response:
    """List all tenants."""
    tenants = await act(Tenants(state_of(request)).list)
    return json_reply(TenantList(object="list", data=[_reply(tenant) for tenant in tenants]))


@router.post(
    "/admin/tenants", openapi_extra=takes(NewTenant), responses=gives(TenantReply, *BODIES, "conflict")
)
async def make_tenant(request: Request) -> Response:
    """Create a tenant."""
    body = await read(request, NewTenant)
    tenants, by = Tenants(state_of(request)), await actor_of(request)
    return json_reply(_reply(await act(lambda: tenants.make(body.name, by, limits=body.limits))))


@router.get("/admin/tenants/{name}", responses=gives(TenantReply))
async def show_tenant(request: Request, name: str) -> Response:
    """Show a tenant."""
    check_own(request, name)
    return json_reply(_reply(await act(lambda: Tenants(state_of(request)).get(name))))


@router.patch(
    "/admin/tenants/{name}", openapi_extra=takes(TenantChange), responses=gives(TenantReply, *BODIES)
)
async def change_tenant(request: Request, name: str) -> Response:
    """Change the limits of a tenant, suspend or resume it."""
    check_own(request, name, changes=True)
    body = await read(request, TenantChange)
    tenants, by = Tenants(state_of(request)), await actor_of(request)
    changed = await act(lambda: tenants.set(name, by, limits=body.limits, suspended=body.suspended))
    return json_reply(_reply(changed))


@router.delete("/admin/tenants/{name}", responses=gives(ActionDone, "invalid_value", "conflict"))
async def remove_tenant(request: Request, name: str) -> Response:
    """Remove a tenant that has no valid keys."""
    check_own(request, name, changes=True)
    tenants, by = Tenants(state_of(request)), await actor_of(request)
    await act(lambda: tenants.remove(name, by))
    return json_reply(ActionDone(object="done"))


def check_own(request: Request, name: str, *, changes: bool = False) -> None:
    """Raise ApiError if an administrator of one tenant accesses another, or changes its own limits."""
    bound = bound_of(request)
    if bound is not None and name != bound:
        raise ApiError("not_found", f"no tenant called '{plain(name, 100)}'")
    if bound is not None and changes:
        raise ApiError("forbidden", "an administrator of one tenant cannot change the tenant")


def _reply(tenant: Tenant) -> TenantReply:
    return TenantReply.model_validate(tenant.facts())
