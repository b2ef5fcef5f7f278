"""`windlass train --backend kubernetes`: launch the run, follow it, stop it on Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import time

from windlass.cli.terminal import print_json
from windlass.cluster.backend import Group, GroupStatus
from windlass.cluster.kubernetes.api import KubernetesApi
from windlass.cluster.kubernetes.follow import ClusterEvent, GroupWatch
from windlass.cluster.kubernetes.kubernetes_backend import KubernetesBackend
from windlass.cluster.kubernetes.pod import setting_of
from windlass.cluster.training_group import TenantJob, training_group
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import InUse, ProcessFailed
from windlass.spec.job import Job
from windlass.spec.protocol.entrypoint import INTERRUPTED

LOOK_S = 1.0
LAST_WORDS_S = 5.0
GONE_S = 300.0


def train_on_kubernetes(args: argparse.Namespace, job: Job) -> int:
    """Run a job in the cluster of [cluster] address; return the exit code."""
    line = ProgressLine(quiet=args.json)
    request = TenantJob(job, args.tenant)
    group = training_group(request, "resume" if args.resume else "new")
    api = KubernetesApi.find(job.cluster.address)
    backend = KubernetesBackend(api, setting_of(request.cluster))
    try:
        _clear_finished(backend, group, line)
        backend.launch(group)
        namespace = setting_of(request.cluster).of(args.tenant)
        line.say(f"launched Job {namespace}/{group.name} with {group.count} pods")
        if args.detach:
            return _tell(args, backend.observe(group.key), line)
        return _follow(args, backend, group, GroupWatch(api, namespace, group), line)
    finally:
        api.close()


def _clear_finished(backend: KubernetesBackend, group: Group, line: ProgressLine) -> None:
    """Remove a finished group of the same name; a running one is left alone."""
    standing = backend.observe(group.key)
    if standing is None:
        return
    if not (standing.over or standing.stopping):
        if standing.group == group:
            line.say(f"group {group.key} is already running; following it")
        return
    backend.stop(group.key)
    end = time.monotonic() + GONE_S
    while backend.observe(group.key) is not None:
        if time.monotonic() > end:
            raise InUse(
                f"group {group.key} of an earlier run is not deleted", hint="`kubectl describe` shows why"
            )
        time.sleep(LOOK_S / 5)


def _follow(
    args: argparse.Namespace,
    backend: KubernetesBackend,
    group: Group,
    following: GroupWatch,
    line: ProgressLine,
) -> int:
    try:
        standing = _until_over(backend, group, following, line)
    except KeyboardInterrupt:
        line.say("stopping: the run saves a checkpoint; continue with --resume")
        backend.stop(group.key)
        _wait_until_gone(backend, group, following, line)
        return INTERRUPTED
    finally:
        following.close()
    if standing is None:
        raise ProcessFailed(f"group {group.key} was stopped by another client")
    failed = [m for m in standing.members if m.state == "failed"]
    if failed:
        why = "; ".join(f"member {m.index}: {m.reason}" for m in failed[:3])
        raise ProcessFailed(f"{len(failed)} of {group.count} pods failed: {why}", hint=failed[0].logs)
    return _tell(args, standing, line)


def _until_over(
    backend: KubernetesBackend, group: Group, following: GroupWatch, line: ProgressLine
) -> GroupStatus | None:
    """Print events until all members have ended; None if the group no longer exists."""
    looked, before = 0.0, ""
    while True:
        if (event := following.next(LOOK_S / 5)) is not None:
            line.say(_words(event, group))
        if time.monotonic() - looked < LOOK_S:
            continue
        looked, standing = time.monotonic(), backend.observe(group.key)
        if standing is None:
            return None
        now = states(standing)
        if now != before:
            line.say(now)
            before = now
        if standing.over:
            for event in following.rest(LAST_WORDS_S):
                line.say(_words(event, group))
            return standing


def _wait_until_gone(
    backend: KubernetesBackend, group: Group, following: GroupWatch, line: ProgressLine
) -> None:
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C stops waiting
        while backend.observe(group.key) is not None:
            if (event := following.next(LOOK_S)) is not None:
                line.say(_words(event, group))


def states(standing: GroupStatus) -> str:
    """Describe how many members are in which state, and why pending members wait."""
    counted: dict[str, int] = {}
    for member in standing.members:
        counted[member.state] = counted.get(member.state, 0) + 1
    reasons = sorted({m.reason for m in standing.members if m.reason and m.state in ("pending", "lost")})
    numbers = ", ".join(f"{count} {state}" for state, count in counted.items())
    return f"pods: {numbers}" + (f" ({'; '.join(reasons[:2])})" if reasons else "")


def _words(event: ClusterEvent, group: Group) -> str:
    if event.kind == "warning":
        return f"cluster: {event.text}"
    return event.text if group.count == 1 else f"[{event.index}] {event.text}"


def _tell(args: argparse.Namespace, standing: GroupStatus | None, line: ProgressLine) -> int:
    assert standing is not None
    if args.json:
        members = [{"index": m.index, "state": m.state, "node": m.node} for m in standing.members]
        print_json({"group": standing.group.key, "members": members})
    elif standing.over:
        print(f"group {standing.group.key} is done; its models are in the home on its volume")
    else:
        line.say(f"left running; `windlass train {args.job} --backend kubernetes` follows it again")
    return 0
