"""The links to all replicas of the routing table: which are connected, and which may take a request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from windlass.serve.gateway.fleet.engine_link import EngineLink, Hub
from windlass.serve.gateway.fleet.request_handle import EngineTask
from windlass.serve.gateway.fleet.routing import ReplicaCandidate, affinity, choose_replica
from windlass.serve.gateway.limits.request_cost import EngineCapacity
from windlass.spec.protocol.routing import RoutedReplica
from windlass.spec.protocol.wire import Generate, ModelInfo


class ReplicaPool:
    """One link for each replica of the routing table."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._links: dict[str, EngineLink] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._known: dict[str, ModelInfo] = {}

    def __iter__(self) -> Iterator[EngineLink]:
        return iter(list(self._links.values()))

    def apply(self, replicas: Sequence[RoutedReplica]) -> None:
        """Connect to new replicas, update the states of known ones, drop those that are not listed."""
        wanted = {replica.name: replica for replica in replicas}
        for name in self._links.keys() - wanted.keys():
            self._links.pop(name).close()
            self._running.pop(name).cancel()
        for name, replica in wanted.items():
            if name in self._links:
                self._links[name].replica = replica
            else:
                link = self._links[name] = EngineLink(replica, self._hub)
                self._running[name] = asyncio.get_running_loop().create_task(link.run())

    async def close(self) -> None:
        for running in self._running.values():
            running.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def note(self, link: EngineLink) -> None:
        """Remember what a replica reports about its models; it stays valid when the replica is gone."""
        assert link.ready is not None
        for model in link.replica.models:
            self._known[model] = link.ready.about(model)

    def known(self, version: str) -> ModelInfo | None:
        return self._known.get(version)

    def alive(self) -> set[str]:
        """Return the versions that have a replica that takes requests."""
        return {model for link in self._links.values() if link.takes for model in link.replica.models}

    def capacity(self, version: str) -> EngineCapacity:
        """Return the capacity of the replicas that take requests for a version."""
        able = self._able(version)
        slots = sum(link.ready.slots for link in able if link.ready is not None)
        return EngineCapacity(slots, max((link.memory for link in able), default=0.0))

    def candidates(self, task: EngineTask, version: str) -> list[EngineLink]:
        """Return the replicas that may take a task; unhealthy ones only if there is no other."""
        fresh = [link for link in self._able(version) if link.replica.name not in task.avoid]
        return [link for link in fresh if link.replica.state == "ready"] or fresh

    def leaving(self, task: EngineTask) -> list[EngineLink]:
        """Return the draining replicas of a task's version: the last resort of a task that was routed to the
        version before it was removed. They end when they have nothing in progress."""
        alive = [link for link in self._links.values() if link.is_alive and not task.shadow]
        return [
            link
            for link in alive
            if task.version in link.replica.models and link.replica.name not in task.avoid
        ]

    def choose(self, task: EngineTask, links: Sequence[EngineLink]) -> EngineLink:
        """Choose one of several replicas for a task."""
        if len(links) == 1:
            return links[0]
        request = task.request
        adapter = request.adapter if isinstance(request, Generate) else ""
        candidates = [
            ReplicaCandidate(link.replica.name, link.busy, link.ready.slots) for link in links if link.ready
        ]
        chosen = choose_replica(candidates, affinity(request.tenant, adapter, task.affinity_tokens))
        return self._links[chosen.name]

    def _able(self, version: str) -> list[EngineLink]:
        return [link for link in self._links.values() if link.takes and version in link.replica.models]
