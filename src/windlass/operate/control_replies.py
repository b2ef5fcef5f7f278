"""The bodies of the control API, both ways. What the OpenAPI document says of them comes from here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from windlass.spec.settings import Settings

Value = bool | int | float | str


class Body(BaseModel):
    """What a client sends: nothing unknown, nothing coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Nothing(Body):
    """A request that says everything by its path."""


class SetBody(Body):
    """Settings to change, as the command line names them: {"train.learning_rate": 0.0001}."""

    changes: dict[str, Value] = Field(min_length=1, max_length=64, description="TABLE.KEY to its value")


class ScaleBody(Body):
    """How many workers an elastic run shall have."""

    workers: Annotated[int, Field(ge=1, le=65536)]


class Health(BaseModel):
    """That the process lives."""

    status: Literal["ok"] = "ok"


class JobReply(BaseModel):
    """How a run stands."""

    model_config = ConfigDict(extra="forbid")

    run: str = Field(description="NAME/NUMBER")
    path: str
    state: Literal["new", "running", "paused", "stopped", "finished"]
    step: int
    loss: float | None
    tokens_per_s: float | None
    bytes_sent: int | None
    validation_loss: float | None
    elastic: bool
    predicted: dict[str, Any] = Field(description="what the planner expects: speed, time, loss, memory")
    effective: dict[str, Any] = Field(description="the settings that training really uses")
    settings: dict[str, Any] = Field(description="what was asked for and is in force; null: as planned")
    asked: Settings | None = Field(description="what was asked for and is not taken yet")
    history: list[dict[str, Any]] = Field(description="every change: who, when, before and after")
    generations: list[dict[str, Any]] = Field(description="of an elastic run: members, layout, reason")


class JobList(BaseModel):
    """All runs, oldest first within a job."""

    jobs: list[JobReply]


class Asked(BaseModel):
    """A request that was written down; the run takes it at its next step border."""

    run: str
    request: Settings


class Scaled(BaseModel):
    """A number of workers that was asked for."""

    run: str
    workers: int


class Records(BaseModel):
    """A part of a run's journal."""

    records: list[dict[str, Any]]
    next: int = Field(description="give it as `after` to go on from here")


class AuditReply(BaseModel):
    """What the ledger of a run proves."""

    ok: bool
    facts: dict[str, Any] = Field(description="samples used, lost and repeated, ranges, gaps, reasons")


class GoodputReply(BaseModel):
    """Where the seconds of a run went."""

    model_config = ConfigDict(extra="forbid")

    total_s: float
    goodput: float = Field(description="share of the time in which the run was wanted that counts")
    measured: bool
    seconds: dict[str, float]
    shares: dict[str, float]


class Incidents(BaseModel):
    """What went wrong, oldest first."""

    incidents: list[dict[str, Any]]


class Failure(BaseModel):
    """What went wrong, in words and as a code."""

    code: str
    type: str
    message: str
    hint: str | None
    request_id: str


class ErrorReply(BaseModel):
    """The one shape of every refusal."""

    error: Failure
