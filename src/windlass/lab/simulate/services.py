"""Services whose load follows the time of day: the autoscaler requests replicas, the scheduler places them.

A replica is a job without end, with a priority above training, so it preempts training jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from windlass.lab.simulate.events import EPOCH_S
from windlass.lab.simulate.scenario import Scenario, Services
from windlass.lab.simulate.workload import SimulatedJob, curve, machines_of, stream
from windlass.spec.scale import Scale
from windlass.supervisor.autoscale.decide import Past, ScaleSignals, decide

TENANT = "services"
SCALE = Scale(min_replicas=2, calm=600.0)
NOISE = 0.05
REPLICAS_EACH = 4
"""Minimum mean load for which a fleet has one more service."""

Start = Callable[[SimulatedJob], str]
"""Submits a job and returns its uid."""


class SimulatedService:
    """One served model."""

    def __init__(self, name: str, mean: float, spec: Services, seed: int) -> None:
        self.name = name
        self.wanted_s = self.missed_s = 0.0
        """Concurrent requests times seconds; and those for which there was no slot."""
        self.max_replicas = self.changes = 0
        self._mean, self._spec = mean, spec
        self._chance = stream(seed, name)
        self._shift_s = self._chance.uniform(-3600.0, 3600.0)
        self._replicas: list[str] = []
        self._past = Past()
        self._number = 0

    def step(
        self,
        now_s: float,
        passed_s: float,
        is_ready: Callable[[str], bool],
        start: Start,
        stop: Callable[[str], None],
    ) -> None:
        """Read the load, and request as many replicas as the autoscaler decides."""
        load = self._mean * curve(now_s - EPOCH_S + self._shift_s, self._spec.day)
        load *= max(0.0, self._chance.gauss(1.0, NOISE))
        ready = sum(map(is_ready, self._replicas))
        slots = ready * self._spec.slots
        self.wanted_s += load * passed_s
        self.missed_s += max(0.0, load - slots) * passed_s
        seen = ScaleSignals(
            replicas=len(self._replicas),
            ready=ready,
            in_flight=round(load),
            queue_s=max(0.0, load - slots) / max(1, slots),
        )
        decision = decide(SCALE, self._past, seen, slots=self._spec.slots, room=1 << 30, now=now_s)
        self._past = decision.past
        self.changes += decision.replicas != len(self._replicas)
        while len(self._replicas) < decision.replicas:
            self._number += 1
            self._replicas.append(start(self._replica()))
        if len(self._replicas) > decision.replicas:
            for uid in sorted(self._replicas, key=is_ready)[: len(self._replicas) - decision.replicas]:
                self._replicas.remove(uid)
                stop(uid)
        self.max_replicas = max(self.max_replicas, len(self._replicas))

    def _replica(self) -> SimulatedJob:
        spec = self._spec
        return SimulatedJob(
            TENANT,
            f"{self.name}-{self._number}",
            members=1,
            min_members=None,
            need=spec.need,
            work_s=float("inf"),
            save_every_s=float("inf"),
            restart_s=spec.restart_s,
            priority=spec.priority,
            endless=True,
        )


def services_of(scenario: Scenario) -> Iterator[SimulatedService]:
    """Divide the total load among the services; the first ones get most of it."""
    spec = scenario.services
    gpus = sum(machines_of(kind, scenario.nodes) * kind.gpus for kind in scenario.machines.values())
    replicas = spec.load * gpus / spec.gpus
    number = max(1, min(spec.number, int(replicas / REPLICAS_EACH)))
    weights = [1 / (rank + 1) for rank in range(number)]
    for rank, weight in enumerate(weights):
        mean = replicas * weight / sum(weights) * spec.slots * SCALE.load
        yield SimulatedService(f"model{rank:02}", mean, spec, scenario.seed)
