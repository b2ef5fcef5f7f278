"""Where a job's processes run: the `[cluster]` table of the job file.

One file serves every backend. A backend ignores keys that belong to another; each description says which
backend uses it. Secrets are only named here and kept by the cluster, because a job is copied into runs and
models.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from windlass.spec.config_model import Bytes, ConfigModel

Backend = Literal["local", "ray", "kubernetes"]
Placement = Literal["spread", "pack"]
Label = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A valid Kubernetes name (RFC 1123)."""

_SECRET = re.compile(r"(^|_)(PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?)(_|$)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Toleration(ConfigModel):
    """A taint of nodes that the processes tolerate (kubernetes)."""

    key: str | None = Field(None, description="the taint's key; every taint if left out")
    operator: Literal["Exists", "Equal"] = Field("Exists", description="whether the value must be equal too")
    value: str | None = Field(None, description="the taint's value, with operator 'Equal'")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="the taint's effect; every effect if left out"
    )
    seconds: Annotated[int, Field(ge=0)] | None = Field(
        None, description="how long a taint with effect 'NoExecute' is tolerated; for ever if left out"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Toleration:
        if self.operator == "Equal" and self.key is None:
            raise ValueError("operator 'Equal' needs a key")
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("a value goes with operator 'Equal'")
        if self.seconds is not None and self.effect != "NoExecute":
            raise ValueError("seconds go with effect 'NoExecute'")
        return self


class VolumeSpec(ConfigModel):
    """A directory that every process sees (kubernetes; elsewhere machines share their file system)."""

    mount: Annotated[str, Field(pattern=r"^/[^:]*$")] = Field(
        description="absolute path at which processes see it"
    )
    claim: Label | None = Field(None, description="a PersistentVolumeClaim that holds it")
    host: Annotated[str, Field(pattern=r"^/")] | None = Field(
        None, description="a directory of the node that holds it"
    )
    size: Bytes | None = Field(
        None, description="create the claim with this size; if left out, it must exist"
    )
    storage_class: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")] | None = Field(
        None, description="storage class of a created claim; the cluster's default if left out"
    )
    scratch: Bytes | None = Field(
        None, description="an empty volume of at most this size, deleted with the process"
    )
    read_only: bool = Field(False, description="mount it read-only")

    @model_validator(mode="after")
    def _one_kind(self) -> VolumeSpec:
        given = [kind for kind in ("claim", "host", "scratch") if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(f"volume at '{self.mount}': give one of claim, host and scratch")
        if self.size is not None and self.claim is None:
            raise ValueError(f"volume at '{self.mount}': size goes with claim")
        if self.storage_class is not None and self.size is None:
            raise ValueError(f"volume at '{self.mount}': storage_class goes with size")
        return self


class Cluster(ConfigModel):
    """Where the processes of a run are started, and what each of them gets."""

    backend: Backend | None = Field(
        None,
        description="what starts processes: this machine, Ray or Kubernetes; if left out, the command itself",
    )
    address: str | None = Field(
        None,
        description="ray: 'HOST:PORT' of the head, or 'auto' for the one on this machine;"
        " kubernetes: a context of the kubeconfig",
    )
    nodes: Annotated[int, Field(ge=1, le=65536)] = Field(
        1, description="machines to divide the workers among, equally"
    )
    cores: Annotated[float, Field(gt=0)] | None = Field(None, description="CPU cores for each worker")
    memory: Bytes | None = Field(None, description="maximum memory of each worker, e.g. '8GiB'")
    gpus: Annotated[int, Field(ge=0)] = Field(0, description="GPUs for each worker")
    placement: Placement = Field(
        "spread", description="put the parts of a run on different machines, or close together"
    )
    gang: bool = Field(True, description="start all at once or none: parts of a run wait for each other")
    priority: Annotated[int, Field(ge=-100, le=100)] = Field(
        0, description="which job goes first when resources are short; higher goes first (local, kubernetes)"
    )
    restarts: Annotated[int, Field(ge=0)] = Field(
        10, description="how often each part that failed is restarted"
    )
    env: dict[str, str] = Field({}, description="environment variables of the processes")
    secrets: dict[str, str] = Field(
        {},
        description="environment variables from secrets, as VARIABLE = 'SECRET/KEY' (kubernetes; elsewhere"
        " the variable must be set on the machine)",
    )
    image: str | None = Field(None, description="container image with Windlass in it (kubernetes)")
    namespace: Label | None = Field(
        None, description="namespace, if not that of the tenant (ray, kubernetes)"
    )
    service_account: Label | None = Field(
        None, description="service account of the processes, if not the one made for them (kubernetes)"
    )
    node_selector: dict[str, str] = Field({}, description="labels that a node must have (ray, kubernetes)")
    tolerations: tuple[Toleration, ...] = Field(
        (), description="taints of nodes that the processes tolerate (kubernetes)"
    )
    volumes: tuple[VolumeSpec, ...] = Field(
        (), description="directories that every process sees (kubernetes)"
    )

    @model_validator(mode="after")
    def _names_variables(self) -> Cluster:
        for name in (*self.env, *self.secrets):
            if _VARIABLE.fullmatch(name) is None:
                raise ValueError(f"'{name}' is not the name of an environment variable")
        if both := sorted(self.env.keys() & self.secrets.keys()):
            raise ValueError(f"{both[0]} is in env and in secrets; give it once")
        return self

    @model_validator(mode="after")
    def _is_no_secret(self) -> Cluster:
        """A job is written into runs and registered models, where others read it."""
        for name in self.env:
            if _SECRET.search(name.upper()):
                raise ValueError(f"env: {name} looks like a secret; name its place in [cluster.secrets]")
        for name, place in self.secrets.items():
            if not all(place.partition("/")):
                raise ValueError(f"secrets: {name} = '{place}' must be 'SECRET/KEY'")
        return self

    @model_validator(mode="after")
    def _mounts_once(self) -> Cluster:
        mounts = [volume.mount for volume in self.volumes]
        if twice := sorted({mount for mount in mounts if mounts.count(mount) > 1}):
            raise ValueError(f"volumes: two are mounted at '{twice[0]}'")
        return self
