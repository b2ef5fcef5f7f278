"""The interface of every cluster backend.

    launch a Group -> observe its members -> scale it -> stop it        each by key, "TENANT/NAME"

The caller chooses the key, and every call may be repeated: a caller that crashed in the middle of one calls
again, with the same result. A backend starts only `python -m MODULE ARGUMENTS`, which follows
spec.protocol.entrypoint. Members keep running when their launcher ends; a new backend object, in any process,
finds them again.

tests/cluster/test_backend_contract.py tests this contract for every backend.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

from windlass.spec.cluster import Placement, Toleration, VolumeSpec
from windlass.spec.errors import BadInput, InUse

State = Literal["pending", "running", "done", "failed", "lost"]
"""pending: waits for capacity, or for its next start. failed: it failed and is not restarted.
lost: its node is gone; it becomes pending when it is to be started elsewhere."""

REQUESTED = "was requested just now"
"""The reason of a member for which nothing was done yet."""

GROUP = "WINDLASS_GROUP"
INDEX = "WINDLASS_INDEX"
HOST = "WINDLASS_HOST"
"""Environment of every member: the key of its group, its index from 0, and its node's address as the other
members see it."""

RESERVED = frozenset(("logs",))
"""Names that no tenant can have: on this machine its directory would be that of the logs."""
MAX_NAME = 52
"""A member is NAME-INDEX, which must be a DNS label of 63 characters."""
_NAME = re.compile(rf"[a-z0-9]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Resources:
    """What one member needs and may use, or what a node has. None: no limit, nothing reserved."""

    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0


@dataclass(frozen=True)
class Restart:
    """Whether a member that ended is restarted: always, after a failure, or never.

    A member that fails more than `max_restarts` times stays failed. The delay doubles from `back_off_s` on,
    and is reset once a member has run for `max_back_off_s`.
    """

    policy: Literal["always", "on-failure", "never"] = "on-failure"
    max_restarts: int = 3
    back_off_s: float = 1.0
    max_back_off_s: float = 60.0


@dataclass(frozen=True)
class Isolation:
    """How the processes of a tenant are isolated on one machine.

    `process.sandbox` and `process.cgroup_limits` apply it; Kubernetes ignores it and uses namespaces. Amounts
    are totals over all groups of the tenant on a machine; None: no limit.
    """

    home: str
    """Their working directory on every machine, the only place they may write to; private to the tenant."""
    uid: int | None = None
    """Their user and group id; None: that of the launcher."""
    secrets: str = ""
    """The directory of the tenant's secrets, as files SECRET/KEY that only the launcher can read."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Variables of all its processes, as "SECRET/KEY"; a job's own secrets are added."""
    python: str = ""
    """An interpreter that its user may execute, if not the launcher's."""
    cores: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    log_bytes: int | None = None
    """Limit for the log of each member."""


@dataclass(frozen=True)
class Group:
    """Processes that belong together: the desired state."""

    name: str
    module: str
    """The module of the process, e.g. windlass.elastic.agent_main."""
    args: tuple[str, ...] = ()
    count: int = 1
    tenant: str = "default"
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values are secrets of the cluster, as "SECRET/KEY"."""
    resources: Resources = Resources()
    restart: Restart = Restart()
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL."""
    gang: bool = True
    placement: Placement = "spread"
    priority: int = 0
    image: str | None = None
    volumes: tuple[VolumeSpec, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    port: int | None = None
    """The port for clients outside the group: Kubernetes gets a Service for it."""
    isolation: Isolation | None = None
    """None: the members run as the launcher's user, without limits of a tenant."""

    @property
    def key(self) -> str:
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True)
class Member:
    """One process of a group: the observed state."""

    index: int
    state: State
    exit_code: int | None = None
    """Of the last process; negative for a signal, None if unknown."""
    restarts: int = 0
    node: str = ""
    since_s: float = 0.0
    """When it entered this state, in seconds of Unix time."""
    reason: str = ""
    """Why it is not running, as a sentence."""
    logs: str = ""
    """Where its standard output and error are: a path, or the command that shows them."""


@dataclass(frozen=True)
class GroupStatus:
    """The status of a group: as requested, and a member for every index below its count.

    Members that are no longer wanted are included until they have ended.
    """

    group: Group
    members: tuple[Member, ...]
    stopping: bool = False

    @property
    def running(self) -> int:
        return sum(member.state == "running" for member in self.members)

    @property
    def over(self) -> bool:
        """Whether all members have ended and none will be restarted."""
        return bool(self.members) and all(member.state in ("done", "failed") for member in self.members)


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    name: str
    alive: bool
    address: str = ""
    total: Resources = Resources()
    free: Resources = Resources()
    reason: str = ""
    """Why it takes no work, as a sentence."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What a node_selector matches."""


@dataclass(frozen=True)
class ClusterState:
    """All nodes and groups of a backend."""

    nodes: tuple[Node, ...]
    groups: tuple[GroupStatus, ...]


class ClusterBackend(Protocol):
    """Where processes run. A cluster that cannot be reached raises ProcessFailed; the caller retries."""

    def launch(self, group: Group) -> None:
        """Run the group; start the members that are missing, if it already runs.

        Returns before the members run. A different group of the same key raises InUse; one that differs only
        in its count is scaled. A group that is being stopped raises InUse until it is gone.
        """

    def observe(self, key: str) -> GroupStatus | None:
        """Return the status of a group; None when there is none."""

    def stop(self, key: str) -> None:
        """Stop a group: end its members and remove everything made for it.

        Returns before the members have ended; after their grace they are killed. Then `observe` returns None.
        Stopping a group that does not exist does nothing.
        """

    def scale(self, key: str, count: int) -> None:
        """Change the number of members: the highest indices are stopped, or further ones started.

        Raises NotFound when there is no such group.
        """

    def survey(self, tenant: str | None = None) -> ClusterState:
        """Return the nodes, and the groups of one tenant or of all."""


def check(group: Group) -> Group:
    """Refuse a group that no backend can run."""
    for what, name in (("group", group.name), ("tenant", group.tenant)):
        if _NAME.fullmatch(name) is None:
            raise BadInput(
                f"{what} '{name}' is not a valid name on a cluster",
                hint=f"at most {MAX_NAME} characters of a-z, 0-9 and '-', e.g. '{label(name)}'",
            )
    if group.tenant in RESERVED:
        raise BadInput(f"tenant '{group.tenant}': this name is reserved")
    if _MODULE.fullmatch(group.module) is None:
        raise BadInput(f"group {group.key}: '{group.module}' is not the name of a Python module")
    if group.count < 0:
        raise BadInput(f"group {group.key}: count {group.count} must be 0 or more")
    return group


def differs(there: Group, wanted: Group) -> bool:
    """Whether two groups of one key are different.

    The count is ignored, and so is the isolation: a quota may change while a group runs.
    """
    return replace(there, count=0, isolation=None) != replace(wanted, count=0, isolation=None)


def refuse_other(there: Group, wanted: Group) -> None:
    """Raise InUse when a different group has the key of the wanted one."""
    if differs(there, wanted):
        raise InUse(
            f"group {wanted.key} already exists with a different specification",
            hint="stop it first, or choose another name",
        )


def member_environment(group: Group, index: int, host: str) -> dict[str, str]:
    """Return the variables of a member in addition to those of its machine."""
    return {**group.environment, GROUP: group.key, INDEX: str(index), HOST: host}


def label(text: str) -> str:
    """Return a name that is valid on every cluster: equal for equal texts, different for different ones."""
    kept = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if kept == text and len(kept) <= MAX_NAME:
        return kept
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{kept[: MAX_NAME - 9].rstrip('-') or 'g'}-{digest}"


def group_bytes(group: Group) -> bytes:
    """Serialise a group; `group_from` reads it."""
    return msgspec.json.encode(group, enc_hook=lambda table: table.model_dump(mode="json"))


def group_from(written: bytes) -> Group:
    def table(kind: type, value: Any) -> Any:
        assert issubclass(kind, VolumeSpec | Toleration)
        return kind.model_validate(value)

    return msgspec.json.decode(written, type=Group, dec_hook=table)
