"""Everything that one job file asks of a Kubernetes cluster. Pure: a job in, manifests out."""

from __future__ import annotations

from windlass.cluster.backend import label
from windlass.cluster.kubernetes.labels import Manifest, tenant_labels
from windlass.cluster.kubernetes.pod import bytes_text, setting_of
from windlass.cluster.kubernetes.serving import STATE, KubernetesService, serving
from windlass.cluster.kubernetes.training import dependents, workload
from windlass.cluster.training_group import Start, TenantJob, at_home, text_for_members, training_group
from windlass.spec.cluster import VolumeSpec


def training(asked: TenantJob, start: Start = "new") -> list[Manifest]:
    """Return what trains the job; with `kubectl apply` it runs as with `windlass train`."""
    group = training_group(asked, start)
    return [*dependents(group, setting_of(asked.cluster)), workload(group, setting_of(asked.cluster))]


def claims(asked: TenantJob) -> list[Manifest]:
    """Return the claims that the job says the size of.

    They outlive what uses them, and whoever launches has no right to make any: an administrator applies them.
    """
    return [_claim(asked, volume) for volume in asked.cluster.volumes if volume.size is not None]


def _claim(asked: TenantJob, volume: VolumeSpec) -> Manifest:
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
            "namespace": setting_of(asked.cluster).of(asked.tenant),
            "labels": tenant_labels(asked.tenant),
        },
        "spec": spec,
    }


def service(asked: TenantJob, model: str | None = None) -> list[Manifest]:
    """Return what answers for a model of the job's home."""
    job = asked.job
    return serving(
        KubernetesService(
            name=f"{label(job.name)[:45].rstrip('-')}-serve",
            tenant=asked.tenant,
            model=model or job.name,
            serve=job.serve,
            cluster=at_home(job.cluster),
            job_text=text_for_members(job),
            setting=setting_of(asked.cluster),
        )
    )
