"""The autoscaling controller: keeps as many replicas as the load needs."""

from __future__ import annotations

import logging
from dataclasses import replace

from windlass.spec.protocol.routing import VersionDemand
from windlass.spec.scale import Scale
from windlass.supervisor.autoscale.capacity import ReplicaHost, ThisMachine, need_of
from windlass.supervisor.autoscale.decide import Past, ScaleSignals, decide
from windlass.supervisor.autoscale.signals import AnswerWindow
from windlass.supervisor.desired import DesiredService, ReplicaGroup
from windlass.supervisor.state import NOTHING, Patch, ServiceState

log = logging.getLogger(__name__)


class Autoscale:
    """A controller: sets the number of replicas of versions that get clients' requests.

    It leaves versions without a weight alone: those belong to a roll-out.
    """

    def __init__(self, scale: Scale, *, slots: int, backend: ReplicaHost | None = None) -> None:
        self._scale, self._slots = scale, slots
        self._backend = backend or ThisMachine()
        self._past: dict[str, Past] = {}
        self._answers: dict[str, AnswerWindow] = {}

    def decide(self, view: ServiceState, now: float) -> Patch:
        wanted = view.wanted
        self._forget(wanted)
        for group in wanted.groups:
            number = self._number(group, view, now)
            if group.weight > 0 and number != group.replicas:
                wanted = wanted.with_group(replace(group, replicas=number))
        return NOTHING if wanted is view.wanted else Patch(wanted=wanted)

    def _number(self, group: ReplicaGroup, view: ServiceState, now: float) -> int:
        version = group.version
        seen = self._seen(group, view, now)
        decision = decide(
            self._scale, self._past.get(version, Past()), seen,
            slots=self._slots, room=self._room(group, view), now=now,
        )  # fmt: skip
        self._past[version] = decision.past
        if decision.why:
            log.warning(
                "%s: %d replicas instead of %d: %s", version, decision.replicas, group.replicas, decision.why
            )
        return decision.replicas

    def _seen(self, group: ReplicaGroup, view: ServiceState, now: float) -> ScaleSignals:
        names = {item.name for item in group.items}
        answers = self._answers.setdefault(group.version, AnswerWindow())
        answers.take((each for each in view.outcomes if each.version in names), now)
        demands = [view.demand.get(name, VersionDemand()) for name in names]
        return ScaleSignals(
            replicas=group.replicas,
            ready=sum(each.phase == "ready" for each in view.of(group.version)),
            in_flight=sum(each.in_flight for each in demands),
            refused=sum(each.refused for each in demands),
            queue_s=answers.queue_s(sum(each.waiting for each in demands), now),
            first_token_s=answers.first_token_s(),
        )

    def _room(self, group: ReplicaGroup, view: ServiceState) -> int:
        """Return how many replicas of this group fit next to all others."""
        running = [each for each in view.replicas if each.phase != "ended"]
        own = [each for each in running if each.version == group.version]
        models = [item.model for item in group.items]
        need = need_of(self._scale.cores, self._scale.memory, [each.process for each in own], models)
        return self._backend.room(need, len(running)) - (len(running) - len(own))

    def _forget(self, wanted: DesiredService) -> None:
        versions = {group.version for group in wanted.groups}
        for known in (self._past, self._answers):
            for version in known.keys() - versions:
                del known[version]
