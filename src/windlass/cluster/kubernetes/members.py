"""Reads the members of a group from its Job and pods. Pure: objects in, members out."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence

from windlass.cluster.backend import Group, Member
from windlass.cluster.kubernetes.labels import INDEX_KEY, ORDINAL_KEY, Manifest
from windlass.cluster.kubernetes.messages import disruption, ended_words, last_end, short, waiting_words
from windlass.cluster.kubernetes.pod import CONTAINER
from windlass.cluster.process.restarts import decide
from windlass.spec.protocol.entrypoint import INTERRUPTED

FAILURES_KEY = "batch.kubernetes.io/job-index-failure-count"


def members_of(group: Group, owner: Manifest, pods: Sequence[Manifest], why_none: str) -> list[Member]:
    """Return a member for every index below the count, and for further pods that have not ended."""
    by_index: dict[int, list[Manifest]] = {}
    for pod in pods:
        if (index := index_of(pod)) is not None:
            by_index.setdefault(index, []).append(pod)
    beyond = [i for i in by_index if i >= group.count and any(is_alive(pod) for pod in by_index[i])]
    status = owner.get("status") or {}
    done = set(_indices(status.get("completedIndexes")))
    failed = set(_indices(status.get("failedIndexes")))
    whole = _failed_as_a_whole(status)
    members = []
    for index in [*range(group.count), *sorted(beyond)]:
        of_index = sorted(by_index.get(index, ()), key=_made)
        member = _member(group, index, of_index, why_none)
        if index in done:
            member = _with(member, "done")
        elif index in failed or (whole and member.state != "done"):
            member = member if member.state == "failed" else _with(member, "failed", member.reason or whole)
        members.append(member)
    return members


def _member(group: Group, index: int, pods: list[Manifest], why_none: str) -> Member:
    if not pods:
        return Member(index, "pending", reason=why_none)
    pod = next((each for each in reversed(pods) if is_alive(each)), pods[-1])
    ends = [end for each in pods if (end := last_end(each)) is not None]
    code = exit_code(ends[-1]) if ends else None
    member = Member(
        index,
        "pending",
        exit_code=code,
        restarts=_restarts(pod, pods),
        node=pod["spec"].get("nodeName") or "",
        since_s=_since(pod),
        logs=f"kubectl logs -n {pod['metadata'].get('namespace')} {pod['metadata']['name']} -c {CONTAINER}",
    )
    phase = (pod.get("status") or {}).get("phase", "Pending")
    if phase == "Succeeded":
        return _with(member, "done")
    if phase == "Failed":
        return _ended(group, member, pod, pods, code)
    if _is_lost(pod):
        return _with(member, "lost", "its node does not answer")
    if phase == "Running" and _container_runs(pod):
        return _with(member, "running")
    return _with(member, "pending", waiting_words(pod))


def _ended(group: Group, member: Member, pod: Manifest, pods: list[Manifest], code: int | None) -> Member:
    """Return a member whose pod failed and has no successor yet; the restart policy decides its state."""
    cause = ended_words(pod)
    if disruption(pod) is not None:
        return _with(member, "pending", f"{cause}; it is restarted")
    counted = sum(disruption(each) is None for each in pods if _phase(each) == "Failed")
    recorded = (pod["metadata"].get("annotations") or {}).get(FAILURES_KEY, 0)
    before = max(counted - 1, int(recorded))
    decided = decide(group.restart, code=code, restarts=before, ran_s=0.0, cause=cause)
    return _with(member, decided.state, _joined(decided.reason, last_end(pod)))


def _joined(reason: str, ended: Manifest | None) -> str:
    """Add the termination message, which Kubernetes takes from the end of the log."""
    last = short(str((ended or {}).get("message") or ""))
    return f"{reason}: {last}" if last else reason


def _with(member: Member, state: str, reason: str = "") -> Member:
    return Member(**{**vars(member), "state": state, "reason": reason})


def index_of(pod: Manifest) -> int | None:
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    index = annotations.get(INDEX_KEY, labels.get(INDEX_KEY, labels.get(ORDINAL_KEY)))
    return None if index is None else int(index)


def is_alive(pod: Manifest) -> bool:
    return _phase(pod) not in ("Succeeded", "Failed")


def exit_code(ended: Manifest) -> int:
    """Return an exit code, negative for a signal as in Python; INTERRUPTED only looks like a signal."""
    code = int(ended.get("exitCode", 0))
    return 128 - code if 128 < code < 160 and code != INTERRUPTED else code


def seconds(text: str | None) -> float:
    """Read a time as Kubernetes writes it, in seconds of Unix time."""
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0


def _restarts(pod: Manifest, pods: list[Manifest]) -> int:
    """Return the starts after the first: new pods by the controller, plus restarts by the node."""
    recorded = int((pod["metadata"].get("annotations") or {}).get(FAILURES_KEY, 0))
    earlier = len(pods) - 1
    again = sum(
        int(c.get("restartCount", 0)) for c in (pod.get("status") or {}).get("containerStatuses") or ()
    )
    return max(recorded, earlier) + again


def _container_runs(pod: Manifest) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return any("running" in (container.get("state") or {}) for container in statuses)


def _is_lost(pod: Manifest) -> bool:
    """Whether the node of a pod does not answer: the pod is being deleted, and nothing confirms it."""
    status = pod.get("status") or {}
    if status.get("reason") == "NodeLost" or status.get("phase") == "Unknown":
        return True
    reasons = ("DeletionByTaintManager", "DeletionByPodGC")
    return bool(pod["metadata"].get("deletionTimestamp")) and disruption(pod) in reasons


def _failed_as_a_whole(status: Manifest) -> str:
    """Return why a whole Job failed; empty when it did not. Failed indices are reported per member."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Failed" and condition.get("status") == "True":
            return str(condition.get("message") or condition.get("reason") or "its Job failed")
    return ""


def _indices(text: str | None) -> Iterable[int]:
    """Read "1,3-5"."""
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first:
            yield from range(int(first), int(last or first) + 1)


def _phase(pod: Manifest) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _made(pod: Manifest) -> tuple[float, str]:
    return seconds(pod["metadata"].get("creationTimestamp")), str(pod["metadata"].get("name"))


def _since(pod: Manifest) -> float:
    ended = last_end(pod)
    status = pod.get("status") or {}
    if not is_alive(pod) and ended is not None and ended.get("finishedAt"):
        return seconds(ended["finishedAt"])
    for container in status.get("containerStatuses") or ():
        running = (container.get("state") or {}).get("running")
        if running and running.get("startedAt"):
            return seconds(running["startedAt"])
    return seconds(status.get("startTime") or pod["metadata"].get("creationTimestamp"))
