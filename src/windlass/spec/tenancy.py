"""The configuration of a tenant: its quota, fair-share weight, storage root and credentials.

One table for every backend: the scheduler admits jobs by it, processes on this machine are limited by it, and
the Kubernetes ResourceQuota of its namespace is rendered from it. Credentials are only named here; their
values are Kubernetes secrets, or files on this machine (SECRET/KEY in both), so this table holds no secrets.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, model_validator

from windlass.spec.config_model import Bytes, ConfigModel
from windlass.spec.errors import AskedWrongly

DEFAULT = "default"
"""The tenant of the installation's owner; its home is the home itself."""
FOLDER = "tenants"
"""Folder in the home: a home for every other tenant."""
MAX_WAITING = 1000
"""Maximum number of waiting jobs of a tenant whose quota does not say."""

Few = Annotated[int, Field(ge=0, le=10**9)]

_REFERENCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/(?!\.{1,2}$)[-A-Za-z0-9._]{1,253}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ROOT = re.compile(r"(s3|s3a|oss|gs|gcs|hdfs|webhdfs)://[^/?#@\s\\*%]+(/[^/?#\s\\*%]+)*/?|/[^?#\x00*]*")


class TenantResourceQuota(ConfigModel):
    """The maximum that a tenant may use at once, over all its jobs; what is left out is not limited."""

    cores: Annotated[float, Field(ge=0, le=1e9)] | None = Field(None, description="CPU cores")
    memory: Bytes | None = Field(None, description="memory, e.g. '16GiB'")
    gpus: Few | None = Field(None, description="GPUs")
    jobs: Few | None = Field(None, description="jobs that run at once")
    waiting: Few | None = Field(
        None, description=f"jobs that wait at once; {MAX_WAITING} if left out, as all tenants share the queue"
    )
    disk: Bytes | None = Field(None, description="bytes in its home on this machine, e.g. '100GiB' (local)")
    processes: Annotated[int, Field(ge=8, le=10**6)] | None = Field(
        None, description="processes and threads at once (local)"
    )
    log: Annotated[Bytes, Field(ge=4096)] | None = Field(
        None, description="bytes of the log of each process; the oldest lines go first (local)"
    )

    @property
    def max_waiting(self) -> int:
        return MAX_WAITING if self.waiting is None else self.waiting


class Allowance(ConfigModel):
    """The table of one tenant."""

    quota: TenantResourceQuota = Field(TenantResourceQuota(), description="what it may use at once")
    weight: Annotated[float, Field(gt=0, le=1e6)] = Field(
        1.0, description="its fair share relative to other tenants when resources are short"
    )
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = Field(
        0, description="maximum priority of its jobs: priority goes before fair share; null: any"
    )
    root: str | None = Field(
        None, description="URL prefix of a store below which all its data stays, e.g. 's3://bucket/acme'"
    )
    credentials: dict[str, str] = Field(
        {}, description="environment variables of its processes from secrets, as VARIABLE = 'SECRET/KEY'"
    )

    @model_validator(mode="after")
    def _names_places(self) -> Allowance:
        for variable, reference in self.credentials.items():
            if _VARIABLE.fullmatch(variable) is None or variable.startswith("WINDLASS_"):
                raise ValueError(f"'{variable[:40]}' is not the name of a variable that a tenant may have")
            if _REFERENCE.fullmatch(reference) is None:  # not shown: the value may be the secret itself
                raise ValueError(f"credentials: {variable} must name a secret as 'SECRET/KEY', not hold one")
        parts = (self.root or "").split("/")
        if self.root is not None and (not _ROOT.fullmatch(self.root) or {".", ".."} & set(parts)):
            raise ValueError("root must be an absolute path or a URL such as 's3://bucket/prefix', and plain")
        return self


def quota_from(text: str) -> dict[str, str]:
    """Read "cores=8,memory=16GiB" into fields of a TenantResourceQuota, which checks them."""
    quota: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise AskedWrongly(
                f"--quota {part}: write WHAT=AMOUNT",
                hint=f"WHAT is one of {', '.join(TenantResourceQuota.model_fields)}",
            )
        quota[name] = value
    return quota
