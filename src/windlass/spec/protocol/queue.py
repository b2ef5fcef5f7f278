"""Requests and replies of the control plane's job queue (docs/formats/control.md)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from windlass.spec.cluster import Cluster
from windlass.spec.config_model import ConfigModel
from windlass.spec.protocol.control import ControlBody

MAX_TEXT = 60_000
PRIORITY = 1000
Priority = Annotated[int, Field(ge=-PRIORITY, le=PRIORITY)]
Tenant = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$")]
JobName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]


class QueuedService(ConfigModel):
    """A service that the control plane keeps running: `windlass serve` with these options."""

    model: Annotated[str, Field(min_length=1, max_length=300)] = Field(
        description="NAME, NAME@VERSION or NAME@ALIAS in the tenant's registry"
    )
    host: str = Field("127.0.0.1", max_length=200, description="address to listen on")
    port: Annotated[int, Field(ge=1, le=65535)] = Field(8000, description="port to listen on")
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(1, description="engines on the machine")
    keys: bool = Field(True, description="whether requests need a key")
    cluster: Cluster = Field(Cluster(), description="[cluster] as in a job file: cores, memory, gpus, image")


class QueueBody(ControlBody):
    """A job to run as soon as there is capacity for it."""

    job: str | None = Field(None, max_length=MAX_TEXT, description="a job file, as text; paths are absolute")
    service: dict[str, Any] | None = Field(None, description="a service in place of a job")
    name: JobName | None = Field(None, description="how it is called (default: the name in the job)")
    priority: Priority = Field(0, description="higher goes first, and may preempt lower ones")
    tenant: Tenant | None = Field(
        None, description="the job's tenant, for keys that may act for all (default: default)"
    )


class PriorityBody(ControlBody):
    """The new priority of a job."""

    priority: Priority


class ShareBody(ControlBody):
    """A tenant's fair-share weight, and its quota; null is no limit."""

    weight: Annotated[float, Field(gt=0, le=1e6, strict=False)] = 1.0
    cores: Annotated[float, Field(ge=0, strict=False)] | None = None
    memory_bytes: Annotated[int, Field(ge=0)] | None = None
    gpus: Annotated[int, Field(ge=0)] | None = None
    jobs: Annotated[int, Field(ge=0)] | None = Field(None, description="running at once")
    priority: Priority | None = Field(None, description="maximum priority of its jobs")


class ShareReply(ShareBody):
    """A tenant's weight and quota, and its recent usage."""

    model_config = ConfigDict(strict=False, frozen=True)

    tenant: str
    used: float = Field(0.0, description="recent usage: seconds of its dominant share, decaying with time")


class ShareList(BaseModel):
    """All tenants that have a quota or recent usage."""

    shares: list[ShareReply]


class QueuedJob(BaseModel):
    """The state of a job."""

    model_config = ConfigDict(extra="forbid")

    uid: str = Field(description="unique for ever; a name may be used again once its job has ended")
    tenant: str
    name: str
    kind: Literal["train", "service"]
    phase: Literal["queued", "admitted", "running", "preempting", "stopping", "done", "failed", "stopped"]
    desired: Literal["run", "stop"]
    priority: int
    members: int = Field(description="members it was admitted with; 0 while it waits")
    place: int | None = Field(description="position in the queue, from 1; null when it does not wait")
    reason: str = Field(description="why it waits, failed or runs again, in plain words")
    attempts: int = Field(description="how often it was admitted, or launched again")
    preemptions: int
    by: str
    submitted_s: float = Field(description="when it was submitted, in seconds of Unix time, as all times")
    since_s: float
    placed_s: float | None
    begun_s: float | None
    ended_s: float | None
    version: int
    group: str = Field(description="the name of its group at the backend")
    need: dict[str, Any] = Field(description="the resources it requests")


class QueueList(BaseModel):
    """A page of jobs, oldest first."""

    jobs: list[QueuedJob]
    next: str | None = Field(description="give it as `after` for the next page; null on the last one")


class QueueEvent(BaseModel):
    """One event of a job."""

    number: int
    at_s: float
    by: str
    what: str


class QueueEvents(BaseModel):
    """The events of a job, oldest first."""

    events: list[QueueEvent]
    next: int = Field(description="give it as `after` to continue from here")


class Explained(BaseModel):
    """Why a job waits, and which jobs are ahead of it."""

    job: QueuedJob
    text: str = Field(description="in one sentence")
    ahead: list[str] = Field(description="jobs that wait before it, the first ones")
    running: dict[str, int] = Field(description="jobs that hold resources, by tenant")
    share: ShareReply


class PlaneReply(BaseModel):
    """The state of the control plane itself."""

    leader: str
    epoch: int
    leads: bool = Field(description="whether the process that answers is the leader")
    backend: str
    phases: dict[str, int]
    trouble: str = Field(description="error of the last reconcile step, if this process leads")
    step_s: float | None = Field(description="duration of the last reconcile step")
