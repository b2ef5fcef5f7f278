"""What every cluster can be asked for, and what it says of itself.

    launch a Group -> observe its members -> scale it -> stop it        each by key, "TENANT/NAME"

The caller chooses the key, and every call may be repeated: whoever died in the midst of one calls again
and comes to the same end. A backend starts nothing but `python -m MODULE ARGUMENTS`, which keeps the
promises of spec.protocol.entrypoint. Members go on when the one who launched them ends; a backend made anew,
by anybody, finds them again.

tests/cluster/test_backend_contract.py says the same in tests, for every backend.
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
"""pending: waits for room, or for its next start. failed: ended badly, and is not started again.
lost: its machine is gone; it becomes pending when it is to be started elsewhere."""

ASKED = "was asked for just now"
"""The reason of a member for which nothing was done yet."""

GROUP = "WINDLASS_GROUP"
INDEX = "WINDLASS_INDEX"
HOST = "WINDLASS_HOST"
"""Environment of every member: the key of its group, its number from 0, and its machine's address as the
other members see it."""

RESERVED = frozenset(("logs",))
"""Names that no tenant can have: on this machine its groups would lie among the logs of others."""
MAX_NAME = 52
"""A member is NAME-INDEX, which must be a DNS label of 63 characters."""
_NAME = re.compile(rf"[a-z0-9]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Resources:
    """What one member needs and may use, or what a node has. None: no limit, nothing set aside."""

    cores: float | None = None
    memory_bytes: int | None = None
    gpus: int = 0


@dataclass(frozen=True)
class Restart:
    """Whether a member that ended is started again: always, after a failure, or never.

    A member that fails more than `most` times stays failed. The pause doubles from `back_off_s` on, and
    begins anew once a member has run for `max_back_off_s`.
    """

    policy: Literal["always", "on-failure", "never"] = "on-failure"
    most: int = 3
    back_off_s: float = 1.0
    max_back_off_s: float = 60.0


@dataclass(frozen=True)
class Isolation:
    """What keeps the processes of a tenant apart from those of others on one machine (cluster/process/sandbox.py, cluster/process/cgroup_limits.py).

    Kubernetes has namespaces for it and passes these over. Amounts are of all groups of the tenant on a
    machine together; None: no limit.
    """

    home: str
    """Where they begin and what they may write to, on every machine; nobody else can look into it."""
    uid: int | None = None
    """The user and group id that they have; None: that of whoever launches them, as all others do."""
    secrets: str = ""
    """The directory of the tenant's secrets, as files SECRET/KEY that only whoever launches can read."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Variables of all its processes, as "SECRET/KEY"; a job's own secrets come beside them."""
    python: str = ""
    """An interpreter that its user may execute, if that is not the one of whoever launches."""
    cores: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    disk_bytes: int | None = None
    log_bytes: int | None = None
    """Of the log of each member."""


@dataclass(frozen=True)
class Group:
    """Processes that belong together: what is wanted."""

    name: str
    module: str
    """Of the process door, e.g. windlass.elastic.agent_main."""
    args: tuple[str, ...] = ()
    count: int = 1
    tenant: str = "default"
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Variables whose values the cluster keeps, as "SECRET/KEY"."""
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
    """Where it answers callers who are not of the group: Kubernetes lets them in there, by one name."""
    walls: Isolation | None = None
    """None: they run as whoever launches them does."""

    @property
    def key(self) -> str:
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True)
class Member:
    """One process of a group: what is there."""

    index: int
    state: State
    exit_code: int | None = None
    """Of the last end; negative for a signal, None where it is not known."""
    restarts: int = 0
    node: str = ""
    since_s: float = 0.0
    """Since when it is in this state, in seconds of Unix time."""
    reason: str = ""
    """Why it is not running, in plain words."""
    logs: str = ""
    """Where its standard output and error are: a path, or the command that shows them."""


@dataclass(frozen=True)
class GroupStatus:
    """How a group stands: as it was asked for, and a member for every index below its count.

    While members that are no longer wanted are being ended, they are there too.
    """

    group: Group
    members: tuple[Member, ...]
    stopping: bool = False

    @property
    def running(self) -> int:
        return sum(member.state == "running" for member in self.members)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
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
    """Why it takes no work, in plain words."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What a node_selector chooses by."""


@dataclass(frozen=True)
class ClusterState:
    """All that a backend knows: the machines, and the groups that it keeps."""

    nodes: tuple[Node, ...]
    groups: tuple[GroupStatus, ...]


class ClusterBackend(Protocol):
    """Where processes run. What cannot be reached raises ProcessFailed; the caller tries again."""

    def launch(self, group: Group) -> None:
        """Let the group run; if it does, nothing happens, and what is missing of it is started.

        Returns before the members run. A group of the same key that differs is InUse; one that differs in
        its count alone is scaled. A group that is being stopped is InUse until it is gone.
        """

    def observe(self, key: str) -> GroupStatus | None:
        """Return how a group stands; None when there is none."""

    def stop(self, key: str) -> None:
        """Ask for the end of a group, of all its members and of all that was made for it.

        Returns before they ended; by force they end after their grace. Then `observe` returns None. A
        group that does not exist has been stopped.
        """

    def scale(self, key: str, count: int) -> None:
        """Let the group have `count` members: the highest indices go, or further ones come.

        NotFound when there is no such group.
        """

    def survey(self, tenant: str | None = None) -> ClusterState:
        """Return the machines, and the groups of a tenant or of all."""


def check(group: Group) -> Group:
    """Refuse what no backend can run."""
    for what, name in (("group", group.name), ("tenant", group.tenant)):
        if _NAME.fullmatch(name) is None:
            raise BadInput(
                f"{what} '{name}' is not a name that a cluster takes",
                hint=f"at most {MAX_NAME} of a-z, 0-9 and '-', e.g. '{label(name)}'",
            )
    if group.tenant in RESERVED:
        raise BadInput(f"tenant '{group.tenant}': this name is taken by the cluster itself")
    if _MODULE.fullmatch(group.module) is None:
        raise BadInput(f"group {group.key}: '{group.module}' is not the name of a Python module")
    if group.count < 0:
        raise BadInput(f"group {group.key}: count {group.count} must be 0 or more")
    return group


def differs(there: Group, wanted: Group) -> bool:
    """Whether two groups of one key ask for different things.

    How many they are does not count, nor do their walls: a quota may change while a group runs.
    """
    return replace(there, count=0, walls=None) != replace(wanted, count=0, walls=None)


def refuse_other(there: Group, wanted: Group) -> None:
    """Raise InUse when another group has the key of the one that is wanted."""
    if differs(there, wanted):
        raise InUse(
            f"group {wanted.key} is there already and asks for something else",
            hint="stop it first, or take another name",
        )


def member_environment(group: Group, index: int, host: str) -> dict[str, str]:
    """Return the variables that a member has beyond those of its machine."""
    return {**group.environment, GROUP: group.key, INDEX: str(index), HOST: host}


def label(text: str) -> str:
    """Return a name that every cluster takes, the same for the same text and another for another."""
    kept = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if kept == text and len(kept) <= MAX_NAME:
        return kept
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{kept[: MAX_NAME - 9].rstrip('-') or 'g'}-{digest}"


def group_bytes(group: Group) -> bytes:
    """Write a group down, to be read by `group_from` when the one who launched it is gone."""
    return msgspec.json.encode(group, enc_hook=lambda table: table.model_dump(mode="json"))


def group_from(written: bytes) -> Group:
    def table(kind: type, told: Any) -> Any:
        assert issubclass(kind, VolumeSpec | Toleration)
        return kind.model_validate(told)

    return msgspec.json.decode(written, type=Group, dec_hook=table)
