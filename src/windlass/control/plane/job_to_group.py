"""Translates a submitted job file or service into the group that a backend runs.

    job file -> Submission (checked, its needs computed once) -> JobEntry -> Group

A train job is `windlass.runs.member` on every machine: it prepares the run in its tenant's home, saves when
it is stopped, continues when it is launched again, and ends at once when its run is over. So launching twice,
stopping, and launching again are all harmless.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from windlass.cluster.backend import MAX_NAME, Group, Resources, Restart
from windlass.cluster.training_group import HOME, JOB, TenantJob, at_home, divided, training_group
from windlass.control.plane.job_store import Submission
from windlass.control.plane.queued_job import JobEntry, ResourceNeeds
from windlass.control.tenants.policy import check_priority, confined_service, restrict_job
from windlass.control.tenants.tenant_registry import TenantContext
from windlass.spec.cluster import Backend, Cluster
from windlass.spec.errors import BadInput, BadJob
from windlass.spec.job import STATISTICS, Job
from windlass.spec.processes import CLI, RUN_MEMBER
from windlass.spec.protocol.queue import QueueBody, QueuedService
from windlass.spec.read import job_from, job_text, parse
from windlass.spec.tenancy import DEFAULT, FOLDER

GRACE_S = 120.0
"""For a run that is being stopped, to save a checkpoint."""
CORES = 1.0
"""Default CPU request per worker; with 0 a job would fit anywhere."""
EVERYWHERE = "0.0.0.0"
ENDLESS = 1_000_000
"""Restarts after which a service is given up."""


def home_of_tenant(home: Path, tenant: str) -> Path:
    """Return the directory of a tenant's corpora, runs and models."""
    return home if tenant == DEFAULT else home / FOLDER / tenant


def submission_of(body: QueueBody, context: TenantContext, by: str, token: str = "") -> Submission:
    """Check a request and compute what it needs, or raise what is wrong with it.

    A tenant's request may name only that tenant's paths, models and secrets.
    """
    tenant, own = context.tenant, context.tenant != DEFAULT
    if (body.job is None) == (body.service is None):
        raise BadInput("give either 'job' (the text of a job file) or 'service'")
    if own:
        check_priority(body.priority, tenant, context.allowance, "priority")
    given = (context.paths, context.allowance)
    if body.job is not None:
        job = job_of(body.job, context.home)
        job = restrict_job(job, *given, own_user=context.uid is not None) if own else job
        name, text, need, kind = body.name or job.name, body.job, train_need(job), "train"
    else:
        service = parse(QueuedService, body.service, "service")
        if own:
            service = confined_service(service, *given, own_user=context.uid is not None)
        name, need, kind = body.name or _service_name(service), service_need(service), "service"
        text = service.model_dump_json(exclude_unset=True)
    digest = hashlib.sha256(msgspec.json.encode([kind, name, text, body.priority])).hexdigest()
    return Submission(
        tenant=tenant,
        name=name,
        kind="train" if kind == "train" else "service",
        text=text,
        need=need,
        by=by,
        priority=body.priority,
        token=token,
        digest=digest,
    )


def job_of(text: str, folder: Path) -> Job:
    """Read a job file from text; relative paths are below `folder`."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"job: not valid TOML: {error}") from None
    return divided(job_from(data, (), "job", folder))


def train_need(job: Job) -> ResourceNeeds:
    """Return what a run requests: one member per node, with resources for its workers there."""
    cluster, world = job.cluster, job.layout.world
    if world % cluster.nodes:
        raise BadJob(
            f"job: [layout] has {world} processes,"
            f" which [cluster] nodes = {cluster.nodes} cannot share equally"
        )
    whole = job.model.family in STATISTICS or job.sync.policy == "server"
    if whole and cluster.nodes > 1:
        raise BadJob(f"job: [cluster] nodes = {cluster.nodes}, but this kind of run uses one node")
    workers = math.ceil((world + job.elastic.spares) / cluster.nodes)
    min_workers = job.elastic.min_workers if "min_workers" in job.elastic.model_fields_set else world
    fewest = math.ceil(min_workers / (world // cluster.nodes))
    return replace(
        _need(cluster, workers),
        members=cluster.nodes,
        min_members=fewest if fewest < cluster.nodes else None,
    )


def service_need(service: QueuedService) -> ResourceNeeds:
    return replace(_need(service.cluster, service.replicas), preemptible=False, endless=True)


def groups_for(home: Path, backend: Backend) -> Callable[[JobEntry], Group]:
    """Return a function from entries to groups of a backend, with homes below `home`.

    Only the count of a group may change while it runs: the backend refuses any other difference.
    """

    def group_of(entry: JobEntry) -> Group:
        place = home_of_tenant(home, entry.tenant)
        if entry.kind == "service":
            return _service_group(entry, place, backend)
        job = job_of(entry.text, place)
        if backend == "kubernetes":
            group = training_group(TenantJob(job, entry.tenant))
            return replace(group, name=entry.group, args=(*group.args, "--note", entry.group))
        return _train_group(entry, job, place)

    return group_of


def _train_group(entry: JobEntry, job: Job, home: Path) -> Group:
    cluster = job.cluster
    size = ("--workers", str(job.layout.world), "--nodes", str(cluster.nodes))
    args = ("--start", "new", *size, "--home", str(home), "--note", entry.group)
    own = job_text(job.model_copy(update={"cluster": Cluster()}), given=True)
    environment = {**cluster.env, HOME: str(home), JOB: own}
    return replace(_group(entry, cluster), module=RUN_MEMBER, args=args, environment=environment)


def _service_group(entry: JobEntry, home: Path, backend: Backend) -> Group:
    """Return the group of a service; in a pod its home is the volume and it listens on all addresses."""
    service = parse(QueuedService, msgspec.json.decode(entry.text), "service")
    host = service.host
    if backend == "kubernetes":
        home, host = Path(at_home(service.cluster).env[HOME]), EVERYWHERE
    at = ("--host", host, "--port", str(service.port), "--replicas", str(service.replicas))
    keys = () if service.keys else ("--no-keys",)
    return replace(
        _group(entry, service.cluster),
        module=CLI,
        args=("serve", service.model, *at, *keys, "--home", str(home)),
        environment={**service.cluster.env, HOME: str(home)},
        restart=Restart("always", max_restarts=ENDLESS),
        port=service.port,
    )


def _group(entry: JobEntry, cluster: Cluster) -> Group:
    need = entry.need
    return Group(
        name=entry.group,
        module="",
        count=entry.members,
        tenant=entry.tenant,
        secrets=cluster.secrets,
        resources=Resources(need.cores or None, need.memory_bytes or None, need.gpus),
        restart=Restart("on-failure", max_restarts=cluster.restarts),
        grace_s=GRACE_S,
        gang=cluster.gang,
        placement=cluster.placement,
        priority=cluster.priority,
        image=cluster.image,
        volumes=cluster.volumes,
        node_selector=cluster.node_selector,
        tolerations=cluster.tolerations,
    )


def _need(cluster: Cluster, workers: int) -> ResourceNeeds:
    return ResourceNeeds(
        cores=(CORES if cluster.cores is None else cluster.cores) * workers,
        memory_bytes=0 if cluster.memory is None else cluster.memory * workers,
        gpus=cluster.gpus * workers,
        placement=cluster.placement,
        node_selector=cluster.node_selector,
    )


def _service_name(service: QueuedService) -> str:
    return "serve-" + service.model.partition("@")[0].rpartition("/")[2][: MAX_NAME - 10]
