"""The replies of the admin routes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel


class KeyReply(BaseModel):
    """A key without its token; `refused` says why it is not valid, null if it is."""

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
    """A key with its token, which is not shown again."""

    key: KeyReply
    token: str


class KeyList(BaseModel):
    """All keys, revoked ones too."""

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
    """One budget: of "all", "tenant:NAME" or "key:ID"; `lent` is what gateways hold of it as leases."""

    scope: str
    kind: str
    capacity: float
    left: float
    lent: float
    gateways: int


class BudgetList(BaseModel):
    """All budgets that have been used."""

    object: Literal["list"]
    data: list[BudgetReply]


class RolloutReply(BaseModel):
    """A roll-out and its state."""

    id: str
    name: str
    stable: str
    candidate: str
    kind: str
    state: str
    weight: float
    command: str
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
    state: Literal["ready", "unhealthy", "draining"]
    connected: bool
    answers: int


class RouteReply(BaseModel):
    """How requests for a bare name are divided between versions."""

    weights: dict[str, float]
    shadow: dict[str, float]
    standby: list[str]


class ReplicaList(BaseModel):
    """The current routing table of this gateway."""

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
    """Whether the audit log is intact."""

    object: Literal["verdict"]
    ok: bool
    records: int
    first: int
    last: int
    hash: str
    reasons: list[str]


class ActionDone(BaseModel):
    """The action is done."""

    object: Literal["done"]
