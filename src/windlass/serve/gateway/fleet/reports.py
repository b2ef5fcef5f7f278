"""The gateway's reports to the supervisor: outcomes of answers, suspect replicas, demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from windlass.serve.gateway.fleet.request_handle import EngineTask
from windlass.spec.protocol.routing import AnswerOutcome, Demand, Outcomes, Suspect, VersionDemand

MAX_OUTCOMES = 10_000
"""Without a connection to the supervisor, only the latest are kept."""


class Reports:
    """Collects reports; `take` returns them and starts again."""

    def __init__(self) -> None:
        self._outcomes: deque[AnswerOutcome] = deque(maxlen=MAX_OUTCOMES)
        self._suspects: deque[Suspect] = deque(maxlen=100)
        self._refused: Counter[str] = Counter()
        self._urgent = asyncio.Event()

    def ended(self, task: EngineTask, *, code: str = "", finish: str = "") -> None:
        """Note how an answer, or an attempt at one, ended."""
        self._outcomes.append(outcome_of(task, code=code, finish=finish))

    def unreadable(self, version: str) -> None:
        """Note a version whose files this gateway cannot read."""
        self._outcomes.append(AnswerOutcome(version, "", "model_failed"))

    def suspect(self, replica: str, why: str) -> None:
        self._suspects.append(Suspect(replica, why))
        self._urgent.set()

    def refused(self, version: str) -> None:
        self._refused[version] += 1

    async def wait(self, max_s: float) -> None:
        """Wait until there is an urgent report, at most `max_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_s):
                await self._urgent.wait()
        self._urgent.clear()

    def take(
        self, tasks: Iterable[EngineTask], alive: Iterable[str], revision: int = 0
    ) -> list[Outcomes | Suspect | Demand]:
        """Return all reports, the most urgent first."""
        reports: list[Outcomes | Suspect | Demand] = [*self._suspects]
        if self._outcomes:
            reports.append(Outcomes(list(self._outcomes)))
        reports.append(demand_of(tasks, self._refused, alive, revision))
        self._suspects.clear()
        self._outcomes.clear()
        self._refused.clear()
        return reports


def outcome_of(task: EngineTask, *, code: str, finish: str) -> AnswerOutcome:
    written = len(task.sent)
    spent_s = task.last_at - task.first_at
    return AnswerOutcome(
        version=task.version,
        replica=task.replica,
        code=code,
        first_token_s=task.first_at - task.submitted_at if written else 0.0,
        per_token_s=spent_s / (written - 1) if written > 1 else 0.0,
        tokens=written,
        repetition=repetition(task.sent),
        finish=finish,
        shadow=task.shadow,
    )


def repetition(tokens: Sequence[int]) -> float:
    """Return the share of token bigrams that occurred before in the same answer."""
    pairs = list(pairwise(tokens))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0


def demand_of(
    tasks: Iterable[EngineTask], refused: Counter[str], alive: Iterable[str], revision: int
) -> Demand:
    in_flight: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for task in tasks:
        in_flight[task.version] += 1
        waiting[task.version] += not task.first_at
    versions = {*in_flight, *refused} - {""}
    return Demand(
        {name: VersionDemand(in_flight[name], waiting[name], refused[name]) for name in sorted(versions)},
        refused[""],
        sorted(alive),
        revision,
    )
