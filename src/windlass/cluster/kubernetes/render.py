"""All Kubernetes objects for one job file. Pure: a job in, manifests out."""

from __future__ import annotations

from windlass.cluster.backend import label
from windlass.cluster.kubernetes.labels import Manifest, tenant_labels
from windlass.cluster.kubernetes.pod import bytes_text, setting_of
from windlass.cluster.kubernetes.serving import STATE, KubernetesService, serving
from windlass.cluster.kubernetes.training import dependents, workload
from windlass.cluster.training_group import Start, TenantJob, at_home, text_for_members, training_group
from windlass.spec.cluster import VolumeSpec


def training(request: TenantJob, start: Start = "new") -> list[Manifest]:
    """Return the manifests that train the job; `kubectl apply` runs it like `windlass train`."""
    group = training_group(request, start)
    return [*dependents(group, setting_of(request.cluster)), workload(group, setting_of(request.cluster))]


def claims(request: TenantJob) -> list[Manifest]:
    """Return the volume claims for which the job gives a size.

    They outlive the job, and launchers have no right to create them: an administrator applies them.
    """
    return [_claim(request, volume) for volume in request.cluster.volumes if volume.size is not None]


def _claim(request: TenantJob, volume: VolumeSpec) -> Manifest:
    assert volume.claim is not None
    assert volume.size is not None
    several = request.cluster.nodes > 1 or STATE in request.cluster.secrets
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
            "namespace": setting_of(request.cluster).of(request.tenant),
            "labels": tenant_labels(request.tenant),
        },
        "spec": spec,
    }


def service(request: TenantJob, model: str | None = None) -> list[Manifest]:
    """Return the manifests that serve a model of the job's home."""
    job = request.job
    return serving(
        KubernetesService(
            name=f"{label(job.name)[:45].rstrip('-')}-serve",
            tenant=request.tenant,
            model=model or job.name,
            serve=job.serve,
            cluster=at_home(job.cluster),
            job_text=text_for_members(job),
            setting=setting_of(request.cluster),
        )
    )
