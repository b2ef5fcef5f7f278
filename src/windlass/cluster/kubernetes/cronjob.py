"""A CronJob for backups: never two at a time; a missed one is made within an hour."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.cluster.backend import Resources
from windlass.cluster.kubernetes import pod
from windlass.cluster.kubernetes.labels import GROUP, Manifest, tenant_labels
from windlass.cluster.kubernetes.pod import DEFAULT, PodSetting
from windlass.spec.cluster import Cluster
from windlass.spec.errors import BadInput
from windlass.spec.processes import CLI

DAILY = "17 3 * * *"
LATE_S = 3600
MAX_S = 6 * 3600
NAME = "windlass-backup"


@dataclass(frozen=True)
class BackupCron:
    """Where backups go, and when."""

    store: str
    tenant: str
    cluster: Cluster
    cron: str = DAILY
    setting: PodSetting = DEFAULT


def backup(schedule: BackupCron) -> Manifest:
    """Return the CronJob."""
    if len(schedule.cron.split()) != 5:
        raise BadInput(
            f"'{schedule.cron}' is not a schedule of minute, hour, day, month, weekday",
            hint=f"e.g. '{DAILY}' is every day at 03:17",
        )
    labels = {
        **tenant_labels(schedule.tenant),
        "app.kubernetes.io/component": "backup",
        GROUP: NAME,
    }
    metadata = {"name": NAME, "namespace": schedule.setting.of(schedule.tenant), "labels": labels}
    job = {
        "backoffLimit": 3,
        "activeDeadlineSeconds": MAX_S,
        "ttlSecondsAfterFinished": 7 * 86400,
        "template": {"metadata": {"labels": labels}, "spec": _pod(schedule)},
    }
    spec = {
        "schedule": schedule.cron,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": LATE_S,
        "successfulJobsHistoryLimit": 3,
        "failedJobsHistoryLimit": 3,
        "jobTemplate": {"spec": job},
    }
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec}


def _pod(schedule: BackupCron) -> Manifest:
    cluster, wanted = schedule.cluster, Resources(1.0, 2 << 30)
    container = {
        "name": "backup",
        "image": pod.image_of(cluster.image, "the backup"),
        "command": ["python", "-m", CLI],
        "args": [pod.literal(arg) for arg in ("backup", "make", schedule.store, "--json")],
        "env": pod.environment(cluster.env, cluster.secrets),
        "resources": pod.resources(wanted),
        "securityContext": pod.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*pod.scratch_mounts(), *pod.mounts(cluster.volumes)],
    }
    volumes = [pod.volume(number, each, schedule.setting) for number, each in enumerate(cluster.volumes)]
    return {
        "serviceAccountName": schedule.setting.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "restartPolicy": "Never",
        "securityContext": pod.pod_security(),
        "containers": [container],
        "volumes": [*pod.scratch_volumes(wanted), *volumes],
    }
