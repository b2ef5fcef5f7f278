"""A double of what runs behind a Kubernetes API server: Job controller, scheduler, node, garbage collector.

Pods are real processes on this machine, without containers. Pauses between starts are short.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.kubernetes_double import Object, Table, now
from windlass.cluster.kubernetes.apply_check import quantity
from windlass.cluster.kubernetes.labels import INDEX_KEY, LAUNCH_KEY, ORDINAL_KEY
from windlass.cluster.kubernetes.members import FAILURES_KEY

TICK_S = 0.02
BACK_OFF_S = 0.05
CORES = 64.0
NODE = "node-a"


class Machine:
    """One node and all controllers, advanced by `step`."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table, self.folder = table, folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.killed_at: dict[str, float] = {}
        self.next_start: dict[tuple[str, int], float] = {}
        table.logs = self.log
        status = {"conditions": [{"type": "Ready", "status": "True"}],
                  "allocatable": {"cpu": str(int(CORES)), "memory": "64Gi"},
                  "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}  # fmt: skip
        table.create("nodes", {"apiVersion": "v1", "metadata": {"name": NODE}, "spec": {}})
        table.objects["nodes", "", NODE]["status"] = status

    def step(self) -> None:
        with self.table.lock:
            for job in self.table.all("jobs"):
                self._job(job)
            for stateful in self.table.all("statefulsets"):
                self._stateful(stateful)
            for pod in self.table.all("pods"):
                self._pod(pod)
            self._collect()

    def log(self, namespace: str, name: str) -> Iterator[bytes]:
        path = self.folder / f"{namespace}-{name}.log"
        at = 0
        while True:
            ended = self._ended(namespace, name)
            content = path.read_bytes()[at:] if path.exists() else b""
            at += len(content)
            if content:
                yield content
            if ended:
                return
            time.sleep(TICK_S)

    def _ended(self, namespace: str, name: str) -> bool:
        pod = self.table.objects.get(("pods", namespace, name))
        return pod is None or pod["status"].get("phase") in ("Succeeded", "Failed")

    def _pods_of(self, owner: Object) -> list[Object]:
        uid = owner["metadata"]["uid"]
        return [p for p in self.table.all("pods") if p["metadata"]["ownerReferences"][0]["uid"] == uid]

    def _job(self, job: Object) -> None:
        spec, status, pods = job["spec"], job["status"], self._pods_of(job)
        if job["metadata"].get("deletionTimestamp") or status.get("conditions"):
            return
        by_index: dict[int, list[Object]] = {}
        for pod in pods:
            by_index.setdefault(int(pod["metadata"]["annotations"][INDEX_KEY]), []).append(pod)
        done, failed = set(), set()
        for index in range(spec["completions"]):
            state = self._index(job, index, by_index.get(index, []))
            done |= {index} if state == "done" else set()
            failed |= {index} if state == "failed" else set()
        for pod in pods:
            beyond = int(pod["metadata"]["annotations"][INDEX_KEY]) >= spec["completions"]
            if (beyond or spec.get("suspend")) and pod["status"]["phase"] in ("Pending", "Running"):
                self._delete(pod)
        told = {"completedIndexes": _text(done), "failedIndexes": _text(failed)}
        if len(done) + len(failed) == spec["completions"]:
            kind = "Failed" if failed else "Complete"
            told["conditions"] = [{"type": kind, "status": "True"}]  # type: ignore[assignment]
        if {k: status.get(k) for k in told} != told:
            status.update(told)
            self.table.put("jobs", job)

    def _index(self, job: Object, index: int, pods: list[Object]) -> str:
        """Start what is missing of an index; say whether it is done or failed for good."""
        phases = [pod["status"]["phase"] for pod in pods]
        if "Succeeded" in phases:
            return "done"
        bad = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
        if any(_code(pod) == 2 for pod in bad) or len(bad) > job["spec"]["backoffLimitPerIndex"]:
            return "failed"
        if len(bad) == len(pods) and not job["spec"].get("suspend"):
            key = (job["metadata"]["uid"], index)
            due = self.next_start.setdefault(key, time.monotonic() + BACK_OFF_S * bool(bad))
            if time.monotonic() >= due:
                del self.next_start[key]
                notes = {INDEX_KEY: str(index), FAILURES_KEY: str(len(bad))}
                name = f"{job['metadata']['name']}-{index}"
                self._make(
                    job, f"{name}-{uuid.uuid4().hex[:5]}", name, notes, {LAUNCH_KEY: job["metadata"]["uid"]}
                )
        return "open"

    def _stateful(self, stateful: Object) -> None:
        if stateful["metadata"].get("deletionTimestamp"):
            return
        names = {pod["metadata"]["name"]: pod for pod in self._pods_of(stateful)}
        wanted = [f"{stateful['metadata']['name']}-{i}" for i in range(stateful["spec"]["replicas"])]
        for index, name in enumerate(wanted):
            if name not in names:
                self._make(stateful, name, name, {}, {ORDINAL_KEY: str(index)})
        for name in names.keys() - set(wanted):
            self._delete(names[name])

    def _make(self, owner: Object, name: str, host: str, notes: dict[str, str], more: dict[str, str]) -> None:
        template = owner["spec"]["template"]
        reference = {k: owner[k] for k in ("apiVersion", "kind")} | {"uid": owner["metadata"]["uid"]}
        metadata = {
            "name": name,
            "namespace": owner["metadata"]["namespace"],
            "labels": {**template["metadata"]["labels"], **more},
            "annotations": notes,
            "ownerReferences": [{**reference, "name": owner["metadata"]["name"]}],
        }
        spec = {**template["spec"], "hostname": host}
        made = self.table.create("pods", {"apiVersion": "v1", "metadata": metadata, "spec": dict(spec)})
        made["status"] = {"phase": "Pending"}

    def _pod(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        process = self.processes.get(uid)
        if process is None and pod["status"]["phase"] == "Pending":
            if pod["metadata"].get("deletionTimestamp"):
                self.table.remove("pods", pod)
            elif self._schedule(pod):
                self._start(pod)
            return
        if process is not None and process.poll() is not None:
            self._end(pod, process.returncode)
        elif process is not None and pod["metadata"].get("deletionTimestamp"):
            self._kill(pod, process)

    def _schedule(self, pod: Object) -> bool:
        running = [p for p in self.table.all("pods") if p["metadata"]["uid"] in self.processes]
        if sum(map(_cores, running)) + _cores(pod) <= CORES:
            pod["spec"]["nodeName"] = NODE
            return True
        message = "0/1 nodes are available: 1 Insufficient cpu."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if pod["status"].get("conditions") != [condition]:
            pod["status"]["conditions"] = [condition]
            self.table.put("pods", pod)
            self.event(pod, "FailedScheduling", message)
        return False

    def event(self, about: Object, reason: str, message: str, kind: str = "Pod") -> None:
        metadata = about["metadata"]
        involved = {"kind": kind, "name": metadata["name"], "uid": metadata["uid"]}
        made = {"name": f"{metadata['name']}.{uuid.uuid4().hex[:8]}", "namespace": metadata["namespace"]}
        self.table.create(
            "events",
            {"apiVersion": "v1", "metadata": made, "type": "Warning", "reason": reason, "message": message,
             "involvedObject": involved},
        )  # fmt: skip

    def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        command = [*container["command"], *(arg.replace("$$", "$") for arg in container.get("args") or ())]
        assert command[0] == "python"
        log = self.folder / f"{pod['metadata']['namespace']}-{pod['metadata']['name']}.log"
        with log.open("ab") as out:
            self.processes[pod["metadata"]["uid"]] = subprocess.Popen(
                [sys.executable, *command[1:]],
                env={"PATH": os.environ["PATH"], **_environment(pod, container)},
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        state = {"running": {"startedAt": now()}}
        pod["status"] = {
            "phase": "Running",
            "startTime": now(),
            "podIP": "127.0.0.1",
            "containerStatuses": [{"name": container["name"], "restartCount": 0, "state": state}],
        }
        self.table.put("pods", pod)

    def _kill(self, pod: Object, process: subprocess.Popen[bytes]) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self.killed_at:
            self.killed_at[uid] = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
            process.terminate()
        elif time.monotonic() > self.killed_at[uid]:
            process.kill()

    def _end(self, pod: Object, code: int) -> None:
        del self.processes[pod["metadata"]["uid"]]
        shown = code if code >= 0 else 128 - code
        ended = {"exitCode": shown, "reason": "Completed" if code == 0 else "Error", "finishedAt": now()}
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        pod["status"]["containerStatuses"][0]["state"] = {"terminated": ended}
        if pod["metadata"].get("deletionTimestamp"):
            self.table.remove("pods", pod)
        else:
            self.table.put("pods", pod)

    def _delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if not metadata.get("deletionTimestamp"):
            self.table.delete("pods", metadata["namespace"], metadata["name"], {})

    def _collect(self) -> None:
        """Foreground deletion: what an object owns goes first."""
        for plural in ("jobs", "statefulsets"):
            for owner in self.table.all(plural):
                if not owner["metadata"].get("deletionTimestamp"):
                    continue
                left = [key for key, o in list(self.table.objects.items()) if _owns(owner, o)]
                for each, namespace, name in left:
                    there = self.table.objects[each, namespace, name]
                    if each != "pods":
                        self.table.remove(each, there)
                    elif there["status"]["phase"] in ("Succeeded", "Failed"):
                        self.table.remove("pods", there)
                    else:
                        self._delete(there)
                if not left:
                    self.table.remove(plural, owner)


def _owns(owner: Object, other: Object) -> bool:
    references = other["metadata"].get("ownerReferences") or ()
    return any(each["uid"] == owner["metadata"]["uid"] for each in references)


def _environment(pod: Object, container: Object) -> dict[str, str]:
    metadata, known = pod["metadata"], {"status.podIP": "127.0.0.1"}
    for kind in ("annotations", "labels"):
        known |= {f"metadata.{kind}['{k}']": v for k, v in (metadata.get(kind) or {}).items()}
    found = {}
    for each in container["env"]:
        told: Any = each.get("value", "").replace("$$", "$")
        if "fieldRef" in each.get("valueFrom", {}):
            told = known[each["valueFrom"]["fieldRef"]["fieldPath"]]
        found[each["name"]] = told
    return found | {"HOME": tempfile.gettempdir(), "TMPDIR": tempfile.gettempdir()}


def _cores(pod: Object) -> float:
    requests = (pod["spec"]["containers"][0].get("resources") or {}).get("requests") or {}
    return float(quantity(requests.get("cpu", "0")) or 0)


def _code(pod: Object) -> int:
    return int(pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"])


def _text(indices: set[int]) -> str:
    return ",".join(map(str, sorted(indices)))


@contextlib.contextmanager
def running(table: Table, folder: Path) -> Iterator[Machine]:
    """Let time pass for a cluster."""
    machine, over = Machine(table, folder), threading.Event()

    def loop() -> None:
        while not over.wait(TICK_S):
            machine.step()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield machine
    finally:
        over.set()
        thread.join()
        for process in machine.processes.values():
            process.kill()
            process.wait()
