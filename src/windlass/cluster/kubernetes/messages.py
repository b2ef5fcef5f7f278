"""States and events of pods as plain sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping

from windlass.cluster.kubernetes.labels import Manifest

WAITING: Mapping[str, str] = {
    "ContainerCreating": "its container is being made",
    "PodInitializing": "its container is being made",
    "ErrImagePull": "its image cannot be fetched",
    "ImagePullBackOff": "its image cannot be fetched",
    "InvalidImageName": "the name of its image is not valid",
    "ErrImageNeverPull": "its image is not on the node, and may not be fetched",
    "CrashLoopBackOff": "it ended again and again, and waits before the next start",
    "CreateContainerConfigError": "a secret or a volume that it needs is not there",
    "CreateContainerError": "its container could not be made",
    "RunContainerError": "its container could not be started",
}
ENDED: Mapping[str, str] = {
    "OOMKilled": "it took more memory than it may, and was killed",
    "Evicted": "its node ran out of room, and sent it away",
    "NodeLost": "its node is gone",
    "NodeShutdown": "its node is being shut down",
    "Terminated": "its node was shut down",
    "Preempted": "more urgent work took its place",
    "PreemptionByScheduler": "more urgent work took its place",
    "TerminationByKubelet": "its node sent it away",
    "EvictionByEvictionAPI": "its node is being emptied",
    "DeletionByTaintManager": "its node is not well",
    "DeletionByPodGC": "its node is gone",
    "UnexpectedAdmissionError": "its node did not take it",
    "ContainerCannotRun": "its command could not be started",
    "StartError": "its command could not be started",
}
EVENTS: Mapping[str, str] = {
    "FailedScheduling": "no node has room for it",
    "FailedMount": "a volume could not be mounted",
    "FailedAttachVolume": "a volume could not be attached",
    "FailedCreatePodSandBox": "its node could not prepare a place for it",
    "FailedCreate": "the cluster does not take its pods",
    "BackOff": "it waits before the next try",
    "Failed": "something failed",
    "Unhealthy": "a probe had no good answer",
    "Evicted": ENDED["Evicted"],
    "Preempted": ENDED["Preempted"],
    "OOMKilling": ENDED["OOMKilled"],
    "NodeNotReady": "its node is not well",
    "TaintManagerEviction": "its node is not well, and sends it away",
    "BackoffLimitExceeded": "it failed too often, and is not started again",
    "FailedIndexes": "members failed too often, and are not started again",
    "PodFailurePolicy": "it ended in a way that a further start would not help",
    "DeadlineExceeded": "it took longer than it may",
    "NotTriggerScaleUp": "no further node can be had for it",
    "TriggeredScaleUp": "a further node is being made for it",
}
LACKS: Mapping[str, str] = {
    "Insufficient cpu": "too few free cores",
    "Insufficient memory": "too little free memory",
    "Insufficient nvidia.com/gpu": "too few free GPUs",
}
SHOWN = frozenset({"TriggeredScaleUp"})
"""Normal events that are shown; warnings always are."""
MAX_CHARS = 300


def event_words(event: Manifest) -> str | None:
    """Return what an event means; None for events that are not shown."""
    reason = str(event.get("reason", ""))
    if event.get("type") != "Warning" and reason not in SHOWN:
        return None
    about = event.get("involvedObject") or event.get("regarding") or {}
    message = short(str(event.get("message") or event.get("note") or ""))
    meaning = _special(message) or EVENTS.get(reason, reason)
    return f"{about.get('kind', 'object').lower()} {about.get('name', '?')}: {meaning}" + (
        f" ({message})" if message else ""
    )


def _special(message: str) -> str | None:
    """Return the meaning of a cause that only the text of an event has."""
    if "exceeded quota" in message:
        return "the tenant's quota is used up"
    if "violates PodSecurity" in message:
        return "the namespace forbids such pods"
    if "serviceaccount" in message and "not found" in message:
        return "its service account is not there; the tenant was not set up"
    if "no PriorityClass" in message:
        return "its priority class is not there; the cluster was not set up"
    if "ImagePull" in message or "pull image" in message:
        return WAITING["ImagePullBackOff"]
    return None


def waiting_words(pod: Manifest) -> str:
    """Return why a pod does not run yet."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return _joined(WAITING.get(waiting.get("reason", ""), waiting.get("reason", "")), waiting)
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _joined(EVENTS["FailedScheduling"], condition)
    return "it waits for a node" if not pod["spec"].get("nodeName") else WAITING["ContainerCreating"]


def ended_words(pod: Manifest) -> str:
    """Return why the cluster ended a pod; empty when only the exit code is known."""
    status = pod.get("status") or {}
    if reason := disruption(pod):
        return ENDED.get(reason, reason)
    if status.get("reason"):
        return _joined(ENDED.get(status["reason"], status["reason"]), status)
    return ENDED.get((last_end(pod) or {}).get("reason", ""), "")


def disruption(pod: Manifest) -> str | None:
    """Return why the cluster evicted a pod, by Kubernetes' name of the reason."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason") or "Evicted")
    return None


def last_end(pod: Manifest) -> Manifest | None:
    """Return how the container of a pod ended last: reason, exitCode, message, finishedAt."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        for state in ("state", "lastState"):
            ended: Manifest | None = (container.get(state) or {}).get("terminated")
            if ended:
                return ended
    return None


def _joined(meaning: str, detail: Manifest) -> str:
    message = short(str(detail.get("message") or ""))
    return f"{meaning}: {message}" if message else meaning


def short(message: str) -> str:
    """Return a message on one line, shortened, with plain names of missing resources."""
    text = re.sub(r"\s+", " ", message).strip()
    for theirs, ours in LACKS.items():
        text = text.replace(theirs, ours)
    return text if len(text) <= MAX_CHARS else "... " + text[-MAX_CHARS:]
