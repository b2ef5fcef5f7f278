"""What the admin routes answer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class KeyReply(BaseModel):
    """A key, without its token; `refused` says why it does not open, null if it does."""

    id: str
    name: str
    tenant: str
    scopes: list[str]
    made_s: float
    expires_s: float | None
    revoked_s: float | None
    limits: dict[str, Any] | None
    refused: str | None


class NewKeyReply(BaseModel):
    """A key with its token, which nobody can read again."""

    key: KeyReply
    token: str


class KeyList(BaseModel):
    """All keys, those that were revoked too."""

    object: Literal["list"]
    data: list[KeyReply]


class TenantReply(BaseModel):
    """A tenant."""

    name: str
    limits: dict[str, Any] | None
    settings: dict[str, Any]
    made_s: float
    suspended_s: float | None
    allowance: dict[str, Any]


class TenantList(BaseModel):
    """All tenants."""

    object: Literal["list"]
    data: list[TenantReply]


class BudgetReply(BaseModel):
    """One budget: of "all", "tenant:NAME" or "key:ID"; gateways hold parts of it that are lent to them."""

    scope: str
    kind: str
    most: float
    left: float
    lent: float
    gateways: int


class BudgetList(BaseModel):
    """Budgets that were counted."""

    object: Literal["list"]
    data: list[BudgetReply]


class RolloutReply(BaseModel):
    """A roll-out, and how it stands."""

    id: str
    name: str
    stable: str
    candidate: str
    kind: str
    state: str
    weight: float
    wish: str
    who: str
    reason: str
    report: dict[str, Any]
    made_s: float
    changed_s: float


class RolloutList(BaseModel):
    """Roll-outs, the newest first."""

    object: Literal["list"]
    data: list[RolloutReply]


class ReplicaReply(BaseModel):
    """One engine, as this gateway sees it."""

    name: str
    models: list[str]
    state: Literal["ready", "unwell", "draining"]
    connected: bool
    answers: int


class RouteReply(BaseModel):
    """What a bare name means."""

    weights: dict[str, float]
    shadow: dict[str, float]
    standby: list[str]


class ReplicaList(BaseModel):
    """The routing table that is in force in this gateway."""

    object: Literal["list"]
    revision: int
    brownout: int
    data: list[ReplicaReply]
    routes: dict[str, RouteReply]


class RecordReply(BaseModel):
    """One record of the audit log."""

    number: int
    at_ms: int
    key_id: str
    who: str
    address: str
    action: str
    target: str
    result: str
    note: str
    before_hash: str
    hash: str


class AuditList(BaseModel):
    """Records of the audit log, oldest first."""

    object: Literal["list"]
    data: list[RecordReply]


class AuditVerdictReply(BaseModel):
    """Whether the whole log is as it was written."""

    object: Literal["verdict"]
    ok: bool
    records: int
    first: int
    last: int
    hash: str
    reasons: list[str]


class ActionDone(BaseModel):
    """What was asked for is done."""

    object: Literal["done"]
