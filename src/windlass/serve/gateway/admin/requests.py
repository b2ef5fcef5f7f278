"""The request bodies of the admin routes."""

from __future__ import annotations

from pydantic import Field

from windlass.serve.gateway.schemas.requests import RequestBody
from windlass.serve.records.keys import Scope
from windlass.serve.records.rollouts import Kind
from windlass.spec.limits import Limits
from windlass.spec.rollout import Rollout
from windlass.spec.tenancy import DEFAULT

LONGEST_S = 3_155_760_000
"""A hundred years."""


class NewKey(RequestBody):
    """POST /admin/keys."""

    name: str = Field(min_length=1, max_length=128, description="a-z, 0-9, '.', '_' and '-'")
    tenant: str = Field(DEFAULT, max_length=128, description="The tenant of the key.")
    scopes: list[Scope] = Field(["use"], min_length=1, max_length=3)
    expires_in_s: float | None = Field(None, gt=0, le=LONGEST_S, description="Default: never.")
    limits: Limits | None = Field(None, description="Default: the limits of every key.")


class KeyLimits(RequestBody):
    """PUT /admin/keys/{name}/limits."""

    limits: Limits | None = Field(description="null: the limits of every key.")


class Rotation(RequestBody):
    """POST /admin/keys/{name}/rotate."""

    grace_s: float = Field(0.0, ge=0, le=LONGEST_S, description="How long the former token stays valid.")


class NewTenant(RequestBody):
    """POST /admin/tenants."""

    name: str = Field(min_length=1, max_length=128, description="a-z, 0-9, '.', '_' and '-'")
    limits: Limits | None = None


class TenantChange(RequestBody):
    """PATCH /admin/tenants/{name}: omitted fields stay unchanged."""

    limits: Limits | None = Field(None, description="An empty object removes the current limits.")
    suspended: bool | None = Field(None, description="The keys of a suspended tenant are refused.")


class NewRollout(RequestBody):
    """POST /admin/rollouts."""

    candidate: str = Field(max_length=256, pattern=r"^[^@]+@[0-9]+$", description="NAME@VERSION")
    kind: Kind = "canary"
    policy: Rollout = Field(default_factory=Rollout)
