"""The group that trains a job on a cluster, the same for every backend. Pure: a job in, a Group out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.cluster.backend import Group, Resources, Restart, label
from windlass.spec.cluster import Cluster
from windlass.spec.errors import BadJob
from windlass.spec.job import Job
from windlass.spec.layout import Layout
from windlass.spec.processes import RUN_MEMBER
from windlass.spec.read import job_text

JOB = "WINDLASS_JOB"
"""Environment of a member: the job file."""
HOME = "WINDLASS_HOME"
GRACE_S = 120.0
"""For a run that is being stopped, to save a checkpoint."""

Start = Literal["new", "resume"]


@dataclass(frozen=True)
class TenantJob:
    """A job, and the tenant that it runs for."""

    job: Job
    tenant: str = "default"

    @property
    def cluster(self) -> Cluster:
        return self.job.cluster


def training_group(request: TenantJob, start: Start = "new") -> Group:
    """Return the group of a run: one member per node, which starts the workers of that node."""
    job, cluster = divided(request.job), request.cluster
    world, nodes = job.layout.world, cluster.nodes
    if world % nodes:
        raise BadJob(f"[layout] has {world} processes, which [cluster] nodes = {nodes} cannot share equally")
    workers = world // nodes
    return Group(
        name=label(job.name),
        module=RUN_MEMBER,
        args=("--start", start, "--workers", str(world), "--nodes", str(nodes)),
        count=nodes,
        tenant=request.tenant,
        environment={**cluster.env, HOME: _home(cluster), JOB: text_for_members(job)},
        secrets=cluster.secrets,
        resources=Resources(
            None if cluster.cores is None else cluster.cores * workers,
            None if cluster.memory is None else cluster.memory * workers,
            cluster.gpus * workers,
        ),
        restart=Restart(max_restarts=cluster.restarts),
        grace_s=GRACE_S,
        gang=cluster.gang,
        placement=cluster.placement,
        priority=cluster.priority,
        image=cluster.image,
        volumes=cluster.volumes,
        node_selector=cluster.node_selector,
        tolerations=cluster.tolerations,
    )


def divided(job: Job) -> Job:
    """Return the job with one worker per node, if it has no layout."""
    if job.layout.world > 1 or job.cluster.nodes == 1:
        return job
    layout = Layout.model_validate({**job.layout.model_dump(), "dp": job.cluster.nodes})
    return job.model_copy(update={"layout": layout})


def text_for_members(job: Job) -> str:
    """Return the job file for the members, without its [cluster] table."""
    return job_text(job.model_copy(update={"cluster": Cluster()}), short=True)


def at_home(cluster: Cluster) -> Cluster:
    """Return the table with the home added to the environment of the processes."""
    return cluster.model_copy(update={"env": {**cluster.env, HOME: _home(cluster)}})


def _home(cluster: Cluster) -> str:
    """Return the directory of corpora, runs and models: on a volume that pods share."""
    shared = [volume.mount for volume in cluster.volumes if volume.claim or volume.host]
    home = cluster.env.get(HOME) or (shared[0] if shared else None)
    if home is None:
        raise BadJob(
            "a run on a cluster needs a home on a volume that its pods share",
            hint="[[cluster.volumes]] mount = '/windlass', claim = 'NAME OF A PersistentVolumeClaim', and its"
            " size if it is to be created",
        )
    return home
