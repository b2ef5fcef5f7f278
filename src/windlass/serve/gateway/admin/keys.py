"""GET /admin/keys, POST /admin/keys and below: make, limit, rotate and revoke keys."""

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
    """List all keys, or those of the tenant whose key asks; those that were revoked too, without tokens."""
    keys = await act(lambda: ApiKeys(state_of(request)).list(bound_of(request)))
    return json_reply(KeyList(object="list", data=[_reply(key) for key in keys]))


@router.post("/admin/keys", openapi_extra=takes(NewKey), responses=gives(NewKeyReply, *BODIES, "conflict"))
async def make_key(request: Request) -> Response:
    """Make a key; its token is in this answer and nowhere else."""
    ask = await read(request, NewKey)
    check_own(ask, bound_of(request))
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    expires_s = None if ask.expires_in_s is None else time.time() + ask.expires_in_s
    key, token = await act(
        lambda: keys.make(
            ask.name, by, tenant=ask.tenant, scopes=ask.scopes, expires_s=expires_s, limits=ask.limits
        )
    )
    return json_reply(NewKeyReply(key=_reply(key), token=token))


@router.get("/admin/keys/{name}", responses=gives(KeyReply))
async def show_key(request: Request, name: str) -> Response:
    """Show a key, by its id or name."""
    return json_reply(_reply(await act(lambda: ApiKeys(state_of(request)).get(name, bound_of(request)))))


@router.post("/admin/keys/{name}/revoke", responses=gives(KeyReply))
async def revoke_key(request: Request, name: str) -> Response:
    """Make a key useless at once; what was begun with it is ended."""
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    return json_reply(_reply(await act(lambda: keys.revoke(name, by, tenant=bound_of(request)))))


@router.post(
    "/admin/keys/{name}/rotate", openapi_extra=takes(Rotation), responses=gives(NewKeyReply, *BODIES)
)
async def rotate_key(request: Request, name: str) -> Response:
    """Give a key another token, which is in this answer and nowhere else."""
    ask = await read(request, Rotation)
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    key, token = await act(lambda: keys.rotate(name, by, grace_s=ask.grace_s, tenant=bound_of(request)))
    return json_reply(NewKeyReply(key=_reply(key), token=token))


@router.put("/admin/keys/{name}/limits", openapi_extra=takes(KeyLimits), responses=gives(KeyReply, *BODIES))
async def limit_key(request: Request, name: str) -> Response:
    """Give a key limits of its own, or those that every key has."""
    ask = await read(request, KeyLimits)
    keys, by = ApiKeys(state_of(request)), await actor_of(request)
    return json_reply(_reply(await act(lambda: keys.limit(name, ask.limits, by, tenant=bound_of(request)))))


def check_own(ask: NewKey, tenant: str | None) -> None:
    """Refuse a tenant's administrator what is not the tenant's.

    Names of keys are one list for all tenants. That a name is taken must not tell of another tenant, so
    each names its keys below its own name.
    """
    if tenant is None:
        return
    if ask.tenant != tenant:
        raise ApiError("not_found", f"no tenant called '{plain(ask.tenant, 100)}'", param="tenant")
    if not ask.name.startswith(f"{tenant}."):
        raise ApiError("invalid_value", f"a key of this tenant is called '{tenant}.NAME'", param="name")


def _reply(key: ApiKey) -> KeyReply:
    return KeyReply.model_validate(key.facts(time.time()))
