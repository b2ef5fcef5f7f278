"""Requests and replies of the control API (docs/formats/control.md).

The OpenAPI documents of the control process, and of the gateway that proxies it, are generated from these
models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from windlass.spec.settings import Settings

Value = bool | int | float | str


class ControlBody(BaseModel):
    """The base class of request bodies: unknown keys are refused, values are not coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Nothing(ControlBody):
    """An empty body: the path says everything."""


class SetBody(ControlBody):
    """Settings to change, as the command line names them: {"train.learning_rate": 0.0001}."""

    changes: dict[str, Value] = Field(min_length=1, max_length=64, description="TABLE.KEY to its value")


class ScaleBody(ControlBody):
    """The number of workers that an elastic run should have."""

    workers: Annotated[int, Field(ge=1, le=65536)]


class PlanBody(ControlBody):
    """What to plan: the tables of a job file, and for which machines; as `windlass plan JOB --fleet F`."""

    job: dict[str, Any] = Field({}, description='tables of a job file: {"train": {"tokens": "300B"}}')
    fleet: str | dict[str, Any] | None = Field(
        None, description='"64xH100-SXM5", or the tables of a fleet file; needed'
    )
    sizes: str | None = Field(
        None, max_length=200, description="a published model in place of [model], such as Llama-3.1-70B"
    )
    objective: Literal["time", "money", "memory"] | None = Field(
        None, description="what to minimise; null: time, or money if only a deadline is given"
    )
    deadline: str | float | None = Field(None, description='"3d", a date, or seconds')
    budget: str | float | None = Field(None, description='"50k", or dollars')
    precision: str | None = Field(
        None, max_length=100, description='arithmetic to choose from: "bfloat16,float8"; 16 bits if null'
    )
    more: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        0, description="also estimate a fleet with so many more devices"
    )
    search: Literal["exhaustive", "greedy"] = Field("exhaustive", description="greedy is quicker")


class PromoteBody(ControlBody):
    """Which version becomes @prod."""

    version: Annotated[int, Field(ge=1, le=10**9)]


class ControlHealth(BaseModel):
    """The process is alive."""

    status: Literal["ok"] = "ok"


class JobReply(BaseModel):
    """The state of a run."""

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
    settings: dict[str, Any] = Field(description="changed settings that are in force; null: as planned")
    requested: Settings | None = Field(description="requested settings that are not in force yet")
    history: list[dict[str, Any]] = Field(description="every change: who, when, before and after")
    generations: list[dict[str, Any]] = Field(description="of an elastic run: members, layout, reason")


class JobList(BaseModel):
    """All runs, oldest first within a job."""

    jobs: list[JobReply]


class SettingsRequested(BaseModel):
    """A request that was recorded; the run applies it at its next step boundary."""

    run: str
    request: Settings


class Scaled(BaseModel):
    """The requested number of workers."""

    run: str
    workers: int


class JournalPart(BaseModel):
    """A part of a run's journal."""

    records: list[dict[str, Any]]
    next: int = Field(description="give it as `after` to continue from here")


class AuditReply(BaseModel):
    """The result of auditing a run's sample ledger."""

    ok: bool
    facts: dict[str, Any] = Field(description="samples used, lost and repeated, ranges, gaps, reasons")


class GoodputReply(BaseModel):
    """Where the seconds of a run went."""

    model_config = ConfigDict(extra="forbid")

    total_s: float
    goodput: float = Field(description="share of the time meant for training that went into steps that count")
    measured: bool
    seconds: dict[str, float]
    shares: dict[str, float]


class Incidents(BaseModel):
    """Incidents of a run, oldest first."""

    incidents: list[dict[str, Any]]


class DeviceChoice(BaseModel):
    """A device of the catalogue."""

    name: str
    memory_bytes: float
    precisions: list[str] = Field(description="that it computes in")
    dollars_h: tuple[float, float] | None = Field(description="lowest and highest price of an hour")
    accelerator: bool = Field(description="false: the CPUs of one machine")


class SizesChoice(BaseModel):
    """A published model whose sizes are known."""

    name: str
    parameters: int
    layers: int
    width: int
    vocabulary: int
    experts: int = Field(description="0: dense")


class PlannerChoices(BaseModel):
    """Devices, models and options that a plan request can name."""

    devices: list[DeviceChoice]
    sizes: list[SizesChoice]
    objectives: list[str]
    precisions: list[str]
    searches: list[str]


class PlanReply(BaseModel):
    """A plan, or why there is none (docs/formats/plan.md)."""

    model_config = ConfigDict(extra="allow")

    format: Literal["windlass-plan-1"]
    job: str
    request: dict[str, Any]
    model: dict[str, Any]
    fleet: dict[str, Any]
    outcome: Literal["plan", "no solution"]
    layouts: list[dict[str, Any]] = Field(description="the best first")
    front: list[dict[str, Any]] = Field(description="none beats these in time, money and memory at once")
    by_devices: list[dict[str, Any]] = Field(description="the fastest for each number of devices")
    explanation: list[str]
    no_solution: dict[str, Any] | None = Field(description="why there is no plan, and what would help")
    ways: list[dict[str, Any]] = Field(description="other ways to meet the deadline or the budget")


class VersionReply(BaseModel):
    """One version of a registered model (docs/formats/registry.md)."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(description="NAME@VERSION")
    name: str
    version: int
    aliases: list[str]
    path: str
    parameters: int | None
    precision: str
    metrics: dict[str, Any] | None = Field(description="measured on held-out text")
    adapter_of: str | None
    origin: dict[str, str] | None = Field(None, description="where an imported model was taken from")
    digest: str
    bytes: int
    registered: str = Field(description="ISO 8601, UTC")
    lineage: dict[str, Any] = Field(description="where it comes from: job, corpus, steps, ...")


class ModelReply(BaseModel):
    """A registered model."""

    name: str
    aliases: dict[str, int]
    versions: list[VersionReply] = Field(description="oldest first")


class RegistryReply(BaseModel):
    """All registered models, by name."""

    models: list[ModelReply]


class ControlFailure(BaseModel):
    """An error, as text and as a code."""

    code: str
    type: str
    message: str
    hint: str | None
    request_id: str


class ControlRefusal(BaseModel):
    """The body of every error reply of the control API."""

    error: ControlFailure
