"""Pods and events, in plain words; members read from them."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.cluster.backend import Group, Restart
from windlass.cluster.kubernetes.labels import INDEX_KEY
from windlass.cluster.kubernetes.members import members_of
from windlass.cluster.kubernetes.messages import event_words, waiting_words

Manifest = dict[str, Any]
GROUP = Group("g", "m", count=1, restart=Restart(max_restarts=2))


def pod(name: str = "g-0-a", at: int = 1, **status: Any) -> Manifest:
    metadata = {
        "name": name,
        "namespace": "n",
        "creationTimestamp": f"2026-01-01T00:00:{at:02}Z",
        "annotations": {INDEX_KEY: "0"},
    }
    return {"metadata": metadata, "spec": {"nodeName": "node-a"}, "status": status}


def ended(code: int, reason: str = "Error", at: int = 1, **more: Any) -> Manifest:
    state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": "2026-01-01T00:01:00Z", **more}}
    return pod(f"g-0-{at}", at, phase="Failed", containerStatuses=[{"name": "member", "state": state}])


def disrupted(reason: str, at: int = 1) -> Manifest:
    made = ended(143, at=at)
    made["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    return made


def member(*pods: Manifest, **owner: Any) -> Any:
    return members_of(GROUP, {"status": owner}, pods, "it has no pod yet")[0]


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("FailedScheduling", "3 Insufficient cpu.", "no node has room for it (3 too few free cores.)"),
        ("FailedScheduling", "1 Insufficient nvidia.com/gpu.", "too few free GPUs"),
        ("Failed", 'Failed to pull image "x"', "its image cannot be fetched"),
        ("FailedCreate", "forbidden: exceeded quota: windlass-quota", "the tenant's quota is used up"),
        ("FailedCreate", 'pods "g" is forbidden: violates PodSecurity', "the namespace forbids such pods"),
        ("FailedCreate", "no PriorityClass with name x was found", "its priority class is not there"),
        ("Evicted", "The node was low on resource: memory.", "its node ran out of room"),
        ("SomethingNew", "what it says", "SomethingNew (what it says)"),
    ],
)  # fmt: skip
def test_warnings_are_said_plainly(reason: str, message: str, words: str) -> None:
    event = {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": "Pod", "name": "g-0"},
    }
    told = event_words(event)
    assert told is not None
    assert told.startswith("pod g-0: ")
    assert words in told


def test_ordinary_events_are_not_reported() -> None:
    assert event_words({"type": "Normal", "reason": "Pulled", "message": "ok"}) is None


def test_a_pod_says_why_it_waits() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
    told = waiting_words(pod(phase="Pending", containerStatuses=[{"name": "member", "state": waiting}]))
    assert told == "its image cannot be fetched: not found"


def test_a_member_out_of_memory_says_so_and_is_started_again() -> None:
    found = member(ended(137, "OOMKilled"))
    assert (found.state, found.exit_code) == ("pending", -9)
    assert found.reason == "it took more memory than it may, and was killed; it is restarted"


def test_a_member_that_failed_too_often_says_its_last_words() -> None:
    pods = [ended(1, at=at, message="ValueError: no") for at in (1, 2, 3)]
    found = member(*pods, failedIndexes="0")
    assert (found.state, found.restarts) == ("failed", 2)
    assert found.reason == "ended with code 1, for the 3rd time: ValueError: no"


@pytest.mark.parametrize("reason", ["PreemptionByScheduler", "EvictionByEvictionAPI", "TerminationByKubelet"])
def test_what_the_cluster_took_away_does_not_count(reason: str) -> None:
    found = member(*(disrupted(reason, at) for at in range(1, 9)))
    assert found.state == "pending"
    assert "it is restarted" in found.reason


def test_a_member_on_a_silent_node_is_lost() -> None:
    made = disrupted("DeletionByTaintManager")
    made["metadata"]["deletionTimestamp"] = "2026-01-01T00:02:00Z"
    made["status"]["phase"] = "Running"
    assert member(made).state == "lost"


def test_the_newest_pod_of_an_index_counts() -> None:
    running = pod(
        "g-0-z", 9, phase="Running", containerStatuses=[{"name": "member", "state": {"running": {}}}]
    )
    found = member(ended(1, at=1), running, ended(1, at=2))
    assert (found.state, found.restarts, found.exit_code) == ("running", 2, 1)


def test_indices_that_the_job_counts_as_done_are_done_without_pods() -> None:
    group = Group("g", "m", count=5)
    found = members_of(group, {"status": {"completedIndexes": "0,2-3"}}, [], "none yet")
    assert [each.state for each in found] == ["done", "pending", "done", "done", "pending"]
