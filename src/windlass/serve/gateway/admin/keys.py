"""GET /admin/keys, POST /admin/keys and below: create, limit, rotate and revoke keys."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from windlass.http.errors import ApiError, plain
from windlass.http.openapi import BODIES, gives, takes
from windlass.serve.gateway.admin.replies import KeyList, KeyReply, NewKeyReply
from windlass.serve.gateway.admin.requests import KeyLimits, NewKey, Rotation
from windlass.serve.gateway.admin.shared import act, actor_of, bound_of, json_reply, state_of
from windlass.serve.gateway.schemas.request_body import read
from windlass.serve.records.keys import ApiKey, ApiKeys

router = APIRouter()


@router.get("/admin/keys", responses=gives(KeyList))
async def list_keys(request: Request) -> Response:
    """List all keys without their tokens, revoked ones too; an administrator of a tenant sees its own."""
    keys = await act(lambda: ApiKeys(state_of(request)).list(bound_of(request)))
    return json_reply(KeyList(object="list", data=[_reply(key) for key in keys]))


@router.post("/admin/keys", openapi_extra=takes(NewKey), responses=gives(NewKeyReply, *BODIES, "conflict"))
async def make_key(request: Request) -> Response:
    """Create a key; its token is shown only in this reply."""
    body = await read(request, NewKey)
    check_own(body, bound_of(request))
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    expires_s = None if body.expires_in_s is None else time.time() + body.expires_in_s
    key, token = await act(
        lambda: keys.make(
            body.name, by, tenant=body.tenant, scopes=body.scopes, expires_s=expires_s, limits=body.limits
        )
    )
    return json_reply(NewKeyReply(key=_reply(key), token=token))


@router.get("/admin/keys/{name}", responses=gives(KeyReply))
async def show_key(request: Request, name: str) -> Response:
    """Show a key, by its id or name."""
    return json_reply(_reply(await act(lambda: ApiKeys(state_of(request)).get(name, bound_of(request)))))


@router.post("/admin/keys/{name}/revoke", responses=gives(KeyReply))
async def revoke_key(request: Request, name: str) -> Response:
    """Revoke a key at once; its running requests are cancelled."""
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    return json_reply(_reply(await act(lambda: keys.revoke(name, by, tenant=bound_of(request)))))


@router.post(
    "/admin/keys/{name}/rotate", openapi_extra=takes(Rotation), responses=gives(NewKeyReply, *BODIES)
)
async def rotate_key(request: Request, name: str) -> Response:
    """Give a key a new token, which is shown only in this reply."""
    body = await read(request, Rotation)
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    key, token = await act(lambda: keys.rotate(name, by, grace_s=body.grace_s, tenant=bound_of(request)))
    return json_reply(NewKeyReply(key=_reply(key), token=token))


@router.put("/admin/keys/{name}/limits", openapi_extra=takes(KeyLimits), responses=gives(KeyReply, *BODIES))
async def limit_key(request: Request, name: str) -> Response:
    """Set the limits of a key, or return it to the default limits."""
    body = await read(request, KeyLimits)
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    return json_reply(_reply(await act(lambda: keys.limit(name, body.limits, by, tenant=bound_of(request)))))


def check_own(body: NewKey, tenant: str | None) -> None:
    """Raise ApiError if an administrator of one tenant creates a key for another.

    All tenants share one list of key names. A conflict must not reveal another tenant's keys, so the keys of
    a tenant must begin with its name.
    """
    if tenant is None:
        return
    if body.tenant != tenant:
        raise ApiError("not_found", f"no tenant called '{plain(body.tenant, 100)}'", param="tenant")
    if not body.name.startswith(f"{tenant}."):
        raise ApiError(
            "invalid_value", f"the name of a key of this tenant must begin with '{tenant}.'", param="name"
        )


def _reply(key: ApiKey) -> KeyReply:
    return KeyReply.model_validate(key.facts(time.time()))
