"""Finds the backend that a job names. Its library is imported only then."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from windlass.cluster.backend import ClusterBackend
from windlass.cluster.local.local_backend import LocalBackend
from windlass.spec.cluster import Cluster
from windlass.spec.errors import BadInput

LOCAL = "cluster"
"""The directory in the home with the state of the groups on this machine."""


def backend_of(cluster: Cluster, home: Path) -> ClusterBackend:
    """Return the backend that the [cluster] table names."""
    if cluster.backend == "ray":
        if importlib.util.find_spec("ray") is None:
            raise BadInput("backend 'ray' needs the package ray", hint="pip install 'windlass[ray]'")
        from windlass.cluster.on_ray.ray_backend import RayBackend

        return RayBackend(cluster.address, cluster.namespace)
    if cluster.backend == "kubernetes":
        if importlib.util.find_spec("yaml") is None:
            raise BadInput(
                "backend 'kubernetes' needs the package pyyaml", hint="pip install 'windlass[kubernetes]'"
            )
        from windlass.cluster.kubernetes.api import KubernetesApi
        from windlass.cluster.kubernetes.kubernetes_backend import KubernetesBackend
        from windlass.cluster.kubernetes.pod import setting_of

        return KubernetesBackend(KubernetesApi.find(cluster.address), setting_of(cluster))
    return LocalBackend(home / LOCAL)
