"""Turns what somebody submits into what a backend runs.

    job file -> Submission (checked, its needs worked out once) -> Entry -> Group

A train job is `windlass.runs.member` on every machine: it prepares the run in its tenant's home, saves
when it is asked to end, goes on when it is launched again, and ends at once when its run is over. So to
launch it twice, to stop it, and to launch it again are all harmless.
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
from windlass.spec.job_text import job_text
from windlass.spec.processes import CLI, RUN_MEMBER
from windlass.spec.protocol.queue import QueueBody, QueuedService
from windlass.spec.read import job_from, parse
from windlass.spec.tenancy import DEFAULT, FOLDER

GRACE_S = 120.0
"""For a run that is asked to end, to save a checkpoint."""
CORES = 1.0
"""Of a worker that says nothing of its cores: who asks for none would always have room."""
EVERYWHERE = "0.0.0.0"
ENDLESS = 1_000_000
"""Failures after which a service is given up."""


def home_of_tenant(home: Path, tenant: str) -> Path:
    """Return where a tenant's corpora, runs and models are."""
    return home if tenant == DEFAULT else home / FOLDER / tenant


def submission_of(body: QueueBody, lodging: TenantContext, by: str, token: str = "") -> Submission:
    """Check what somebody asks for and work out what it needs, or say what is wrong with it.

    What is asked for a tenant may name only what is that tenant's own.
    """
    tenant, own = lodging.tenant, lodging.tenant != DEFAULT
    if (body.job is None) == (body.service is None):
        raise BadInput("give one of 'job', the text of a job file, and 'service'")
    if own:
        check_priority(body.priority, tenant, lodging.allowance, "priority")
    given = (lodging.ground, lodging.allowance)
    if body.job is not None:
        job = job_of(body.job, lodging.home)
        job = restrict_job(job, *given, own_user=lodging.uid is not None) if own else job
        name, text, need, kind = body.name or job.name, body.job, train_need(job), "train"
    else:
        service = parse(QueuedService, body.service, "service")
        if own:
            service = confined_service(service, *given, own_user=lodging.uid is not None)
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
    """Read a job file that came as text; what is relative in it is below `folder`."""
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadJob(f"job: not valid TOML: {error}") from None
    return divided(job_from(data, (), "job", folder))


def train_need(job: Job) -> ResourceNeeds:
    """Return what a run asks for: a member for every machine, with room for its workers there."""
    cluster, world = job.cluster, job.layout.world
    if world % cluster.nodes:
        raise BadJob(
            f"job: [layout] has {world} processes,"
            f" which [cluster] nodes = {cluster.nodes} cannot share equally"
        )
    whole = job.model.family in STATISTICS or job.sync.policy == "server"
    if whole and cluster.nodes > 1:
        raise BadJob(f"job: [cluster] nodes = {cluster.nodes}, but this kind of run is done by one machine")
    workers = math.ceil((world + job.elastic.spares) / cluster.nodes)
    least = job.elastic.least if "least" in job.elastic.model_fields_set else world
    fewest = math.ceil(least / (world // cluster.nodes))
    return replace(
        _need(cluster, workers),
        members=cluster.nodes,
        least=fewest if fewest < cluster.nodes else None,
    )


def service_need(service: QueuedService) -> ResourceNeeds:
    return replace(_need(service.cluster, service.replicas), preemptible=False, endless=True)


def groups_for(home: Path, backend: Backend) -> Callable[[JobEntry], Group]:
    """Return how entries become groups of a backend, with homes below `home`.

    A group depends on nothing that may change while it runs, save its count: another one would be refused.
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
    """Return the group of a service; a pod's home is its volume, and it listens to all of its own network."""
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
        restart=Restart("always", most=ENDLESS),
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
        restart=Restart("on-failure", most=cluster.restarts),
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
