"""Everything that one job file asks of a Kubernetes cluster. Pure: a job in, manifests out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from windlass.cluster.backend import Group, Resources, Restart, label
from windlass.cluster.on_kubernetes.labels import Manifest, tenant_labels
from windlass.cluster.on_kubernetes.pod import Setting, bytes_text, setting_of
from windlass.cluster.on_kubernetes.serving import STATE, Service, serving
from windlass.cluster.on_kubernetes.training import dependents, workload
from windlass.spec.cluster import Cluster, Volume
from windlass.spec.errors import BadJob
from windlass.spec.job import Job
from windlass.spec.job_text import job_text
from windlass.spec.layout import Layout

MEMBER = "windlass.cli.train_member"
JOB = "WINDLASS_JOB"
"""Environment of a member: the job file."""
HOME = "WINDLASS_HOME"
GRACE_S = 120.0
"""For a run that is asked to end, to save a checkpoint."""

Start = Literal["new", "resume"]


@dataclass(frozen=True)
class Asked:
    """A job, and for whom."""

    job: Job
    tenant: str = "default"

    @property
    def cluster(self) -> Cluster:
        return self.job.cluster

    @property
    def setting(self) -> Setting:
        return setting_of(self.cluster)


def training(asked: Asked, start: Start = "new") -> list[Manifest]:
    """Return what trains the job; with `kubectl apply` it runs as with `windlass train`."""
    group = training_group(asked, start)
    return [*dependents(group, asked.setting), workload(group, asked.setting)]


def training_group(asked: Asked, start: Start = "new") -> Group:
    """Return the pods of a run: one for each machine, which starts the workers of that machine."""
    job, cluster = divided(asked.job), asked.cluster
    world, nodes = job.layout.world, cluster.nodes
    if world % nodes:
        raise BadJob(f"[layout] has {world} processes, which [cluster] nodes = {nodes} cannot share equally")
    workers = world // nodes
    return Group(
        name=label(job.name),
        module=MEMBER,
        args=("--start", start, "--workers", str(world), "--nodes", str(nodes)),
        count=nodes,
        tenant=asked.tenant,
        environment={**cluster.env, HOME: _home(cluster), JOB: _own_text(job)},
        secrets=cluster.secrets,
        resources=Resources(
            None if cluster.cores is None else cluster.cores * workers,
            None if cluster.memory is None else cluster.memory * workers,
            cluster.gpus * workers,
        ),
        restart=Restart(most=cluster.restarts),
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
    """Return the job with a worker for every machine, where it does not say how the work is divided."""
    if job.layout.world > 1 or job.cluster.nodes == 1:
        return job
    layout = Layout.model_validate({**job.layout.model_dump(), "dp": job.cluster.nodes})
    return job.model_copy(update={"layout": layout})


def _own_text(job: Job) -> str:
    """Return the job file for those who are in the cluster already."""
    return job_text(job.model_copy(update={"cluster": Cluster()}), short=True)


def at_home(cluster: Cluster) -> Cluster:
    """Return the table with the home among the variables of the processes."""
    return cluster.model_copy(update={"env": {**cluster.env, HOME: _home(cluster)}})


def _home(cluster: Cluster) -> str:
    """Return where pods keep corpora, runs and models: on a volume that outlives and joins them."""
    shared = [volume.mount for volume in cluster.volumes if volume.claim or volume.host]
    home = cluster.env.get(HOME) or (shared[0] if shared else None)
    if home is None:
        raise BadJob(
            "a run in a cluster needs a home that its pods share and that outlives them",
            hint="[[cluster.volumes]] mount = '/windlass', claim = 'NAME OF A PersistentVolumeClaim', and its"
            " size if it is to be made",
        )
    return home


def claims(asked: Asked) -> list[Manifest]:
    """Return the claims that the job says the size of.

    They outlive what uses them, and whoever launches has no right to make any: an administrator applies them.
    """
    return [_claim(asked, volume) for volume in asked.cluster.volumes if volume.size is not None]


def _claim(asked: Asked, volume: Volume) -> Manifest:
    assert volume.claim is not None
    assert volume.size is not None
    several = asked.cluster.nodes > 1 or STATE in asked.cluster.secrets
    spec: Manifest = {
        "accessModes": ["ReadWriteMany" if several else "ReadWriteOnce"],
        "resources": {"requests": {"storage": bytes_text(volume.size)}},
    }
    if volume.storage_class is not None:
        spec["storageClassName"] = volume.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": volume.claim,
            "namespace": asked.setting.of(asked.tenant),
            "labels": tenant_labels(asked.tenant),
        },
        "spec": spec,
    }


def service(asked: Asked, model: str | None = None) -> list[Manifest]:
    """Return what answers for a model of the job's home."""
    job = asked.job
    return serving(
        Service(
            name=f"{label(job.name)[:45].rstrip('-')}-serve",
            tenant=asked.tenant,
            model=model or job.name,
            serve=job.serve,
            cluster=at_home(job.cluster),
            job_text=_own_text(job),
            setting=asked.setting,
        )
    )
