"""Elastic runs on a cluster: a group with an agent on every machine, launched and followed from here.

    launch the group -> read the journal, observe the group -> the run is over -> stop the group

This process decides nothing: the run continues when it ends, and launching again finds the same run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.cluster.backend import (
    REQUESTED,
    ClusterBackend,
    Group,
    GroupStatus,
    Member,
    Resources,
    Restart,
    label,
)
from windlass.cluster.launch.launcher import interrupts
from windlass.cluster.launch.local_process import error_of
from windlass.runs import run_settings
from windlass.runs.elastic_run import address_towards_leader, begin
from windlass.runs.tail import Tail
from windlass.runs.training import RunFolder
from windlass.spec.cluster import Cluster
from windlass.spec.errors import ProcessFailed, WindlassError
from windlass.spec.processes import AGENT
from windlass.spec.protocol.elastic import OVER
from windlass.spec.run import JOURNAL
from windlass.store.lock import locked

LOOK_EVERY_S = 0.2
OBSERVE_EVERY_S = 1.0
GONE_S = 30.0
"""Time for a group to disappear once its run is over."""

Tell = Callable[[dict[str, Any]], None]
Say = Callable[[str], None]


def group_of(folder: RunFolder, workers: int) -> Group:
    """Return the group of a run: one member for every machine, with resources for its workers."""
    job = folder.load().job
    cluster = job.cluster
    place = hashlib.sha256(str(folder.path).encode()).hexdigest()[:6]
    return Group(
        name=label(f"train-{job.name}-{folder.path.name}-{place}".replace(".", "-").replace("_", "-")),
        module=AGENT,
        args=(str(folder.path),),
        count=cluster.nodes,
        environment=cluster.env,
        secrets=cluster.secrets,
        resources=resources_of(cluster, workers + job.elastic.spares),
        restart=Restart("on-failure", max_restarts=cluster.restarts),
        gang=cluster.gang,
        placement=cluster.placement,
        priority=cluster.priority,
        image=cluster.image,
        volumes=cluster.volumes,
        node_selector=cluster.node_selector,
        tolerations=cluster.tolerations,
    )


def resources_of(cluster: Cluster, workers: int) -> Resources:
    """Return the resources for one machine's share of the workers."""
    each = math.ceil(workers / cluster.nodes)
    return Resources(
        cores=None if cluster.cores is None else cluster.cores * each,
        memory_bytes=None if cluster.memory is None else cluster.memory * each,
        gpus=cluster.gpus * each,
    )


def train_on(
    backend: ClusterBackend,
    folder: RunFolder,
    tell: Tell,
    say: Say,
    *,
    workers: int | None,
    detach: bool = False,
) -> bool | None:
    """Train on a cluster. Return False when the run was stopped, None when it was left running."""
    run = folder.load()
    count = workers or run.layout.world
    group = group_of(folder, count)
    with locked(folder.path / ".lock", f"run {folder.name}"):
        if address_towards_leader(folder) is None and backend.observe(group.key) is None:
            begin(folder, count, nodes=group.count)
        backend.launch(group)
        say(f"group {group.key}: {group.count} machines requested, {count} workers in all")
        if detach:
            return None
        return GroupFollower(backend, group, folder, tell, say).run()


class GroupFollower:
    """Follows a run until it is over, then stops its group."""

    def __init__(
        self, backend: ClusterBackend, group: Group, folder: RunFolder, tell: Tell, say: Say
    ) -> None:
        self._backend, self._group, self._folder = backend, group, folder
        self._tell, self._say = tell, say
        journal = folder.path / JOURNAL
        self._tail = Tail(journal, after=_lines(journal))
        self._interruptions = self._passed_on = 0
        self._seen: dict[int, Member] = {}
        self._observed_s = 0.0
        self._silent = False

    def run(self) -> bool:
        with interrupts(self._interrupt):
            while not (self._folder.path / OVER).exists() and self._interruptions < 2:
                self._step()
        for event in self._tail.read():
            self._tell(event)
        self._end()
        return self._outcome()

    def _step(self) -> None:
        for event in self._tail.read():
            self._tell(event)
        if self._passed_on < self._interruptions:
            self._passed_on = self._interruptions
            self._say("stopping: the run saves a checkpoint; interrupt again to end it at once")
            run_settings.stop(self._folder)
        if time.monotonic() - self._observed_s > OBSERVE_EVERY_S:
            self._observed_s = time.monotonic()
            self._observe()
        time.sleep(LOOK_EVERY_S)

    def _observe(self) -> None:
        """Report changes of the members. If the cluster does not answer, try again later."""
        try:
            self._backend.launch(self._group)
            standing = self._backend.observe(self._group.key)
        except ProcessFailed as error:
            if not self._silent:
                self._say(f"warning: {error.message}")
            self._silent = True
            return
        self._silent = False
        if standing is not None:
            self._report_changes(standing)
            if standing.over and not (self._folder.path / OVER).exists():
                raise self._failure(standing)

    def _report_changes(self, standing: GroupStatus) -> None:
        for member in standing.members:
            before = self._seen.get(member.index)
            self._seen[member.index] = member
            if before is not None and (before.state, before.reason) == (member.state, member.reason):
                continue
            if member.state == "running":
                self._say(f"part {member.index} runs at {member.node}")
            elif member.state != "done" and member.reason != REQUESTED:
                self._say(f"warning: part {member.index} is {member.state}: {member.reason}")

    def _failure(self, standing: GroupStatus) -> WindlassError:
        self._end()
        worst = next((m for m in standing.members if m.state == "failed"), standing.members[0])
        return ProcessFailed(
            f"part {worst.index} of run {self._folder.name} {worst.reason}", hint=f"its log is {worst.logs}"
        )

    def _end(self) -> None:
        """Stop the group. If the cluster does not answer, its members end by themselves: the run is over."""
        with contextlib.suppress(ProcessFailed):
            self._backend.stop(self._group.key)
            until = time.monotonic() + GONE_S
            while self._backend.observe(self._group.key) is not None and time.monotonic() < until:
                time.sleep(LOOK_EVERY_S)

    def _interrupt(self) -> None:
        self._interruptions += 1

    def _outcome(self) -> bool:
        file = self._folder.path / OVER
        if not file.exists():
            return False
        ending = json.loads(file.read_bytes())
        if ending["outcome"] == "failed":
            raise error_of(ending["error"] or {})
        return bool(ending["outcome"] == "finished")


def _lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0
