"""Streams what happens to a group: warnings of the cluster and the output of its members.

Watchers run in threads and put events into one queue; a watch that the server ends or expires is restarted.
No event is returned twice.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from windlass.cluster.backend import Group
from windlass.cluster.kubernetes.api import Expired, KubernetesApi
from windlass.cluster.kubernetes.labels import Manifest, selector
from windlass.cluster.kubernetes.members import index_of, is_alive
from windlass.cluster.kubernetes.messages import event_words
from windlass.cluster.kubernetes.pod import CONTAINER
from windlass.spec.errors import WindlassError

AGAIN_S = 1.0
WATCH_S = 60.0


@dataclass(frozen=True)
class ClusterEvent:
    """A warning of the cluster, or a line of a member's output."""

    kind: Literal["warning", "line"]
    text: str
    index: int | None = None


class GroupWatch:
    """Watches one group until it is closed."""

    def __init__(self, api: KubernetesApi, namespace: str, group: Group) -> None:
        self._api, self._namespace, self._group = api, namespace, group
        self._events: queue.Queue[ClusterEvent] = queue.Queue()
        self._over = threading.Event()
        self._reading: set[str] = set()
        self._lines: list[threading.Thread] = []
        self.watchers = [
            threading.Thread(target=work, name=f"follow {group.key}", daemon=True)
            for work in (self._watch_pods, self._watch_events)
        ]
        for watcher in self.watchers:
            watcher.start()

    def next(self, wait_s: float) -> ClusterEvent | None:
        """Return the next event; None after a timeout."""
        try:
            return self._events.get(timeout=wait_s)
        except queue.Empty:
            return None

    def rest(self, wait_s: float) -> Iterator[ClusterEvent]:
        """Yield the remaining events, once the members have ended."""
        end = time.monotonic() + wait_s
        for thread in self._lines:
            thread.join(max(0.0, end - time.monotonic()))
        while (event := self.next(0.05)) is not None:
            yield event

    def close(self) -> None:
        self._over.set()

    def _watch_pods(self) -> None:
        for pod in self._changes("Pod", selector(self._group)):
            started = (pod.get("status") or {}).get("phase") in ("Running", "Succeeded", "Failed")
            uid = pod["metadata"]["uid"]
            if started and uid not in self._reading:
                self._reading.add(uid)
                thread = threading.Thread(target=self._read, args=(pod,), daemon=True)
                thread.start()
                self._lines.append(thread)

    def _watch_events(self) -> None:
        seen: dict[str, int] = {}
        mine = f"{self._group.name}-"
        for event in self._changes("Event", None):
            about = str((event.get("involvedObject") or {}).get("name", ""))
            count, uid = int(event.get("count") or 1), str(event["metadata"].get("uid"))
            if (about == self._group.name or about.startswith(mine)) and uid not in seen:
                words = event_words(event)
                if words is not None:
                    self._events.put(ClusterEvent("warning", words))
                seen[uid] = count

    def _read(self, pod: Manifest) -> None:
        """Queue the output of a member until its pod ends."""
        index, name = index_of(pod), pod["metadata"]["name"]
        with contextlib.suppress(
            WindlassError
        ):  # the pod was deleted meanwhile; its end is reported elsewhere
            for line in self._api.log(self._namespace, name, CONTAINER, follow=is_alive(pod)):
                if self._over.is_set():
                    return
                self._events.put(ClusterEvent("line", line, index))

    def _changes(self, kind: str, labels: Mapping[str, str] | None) -> Iterator[Manifest]:
        """Yield the current objects and their changes; restart watches that end."""
        version = ""
        while not self._over.is_set():
            try:
                if not version:
                    found, version = self._api.list(kind, self._namespace, labels)
                    yield from found
                for what, each in self._api.watch(kind, self._namespace, version, labels, quiet_s=WATCH_S):
                    version = str(each["metadata"].get("resourceVersion", version))
                    if what in ("ADDED", "MODIFIED"):
                        yield each
                    if self._over.is_set():
                        return
            except Expired:
                version = ""
            except WindlassError:
                self._over.wait(AGAIN_S)  # the server does not answer; `observe` reports it to the caller
                version = ""
