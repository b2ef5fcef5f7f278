"""Breaks down the time of a run by activity, over all its restarts.

Input: the journal of a run. Output: seconds of each kind, from its first record to its last. While a run
trains, rank 0 measures its own phases and writes them with the ledger; everything else is the time between
records, by the state of the run. Clocks are not trusted: times are corrected (`clock_skew`), and a gap in
training counts at most the measured time plus SLACK_S.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from windlass.runs.clock_skew import mended

KINDS = (
    "compute",
    "communication",
    "data",
    "checkpoint",
    "evaluation",
    "undone",
    "start",
    "recovery",
    "idle",
    "offline",
    "other",
)
MEANINGS = {
    "compute": "forward, backward and update",
    "communication": "waiting for other workers",
    "data": "waiting for samples",
    "checkpoint": "waiting for checkpoints",
    "evaluation": "measuring on held-out text",
    "undone": "computing steps that were rolled back",
    "start": "until the first step, each time that the run was started",
    "recovery": "from a loss or a change of members until training continued",
    "idle": "paused, or waiting for workers",
    "offline": "stopped",
    "other": "not measured",
}
MEASURED = KINDS[:5]
SLACK_S = 30.0
"""Largest unmeasured stretch of training; a longer one is a clock that was set forward."""
MAX_RECOVERY_S = 600.0
OFFLINE_AFTER_S = 60.0
"""A longer silence before a start means that the run was stopped without a record of it."""
BEGINS = {"started", "coordinator"}
"""The first events of a run that is resumed after it was stopped."""
STATES = {
    "lost": "recovery",
    "restarted": "recovery",
    "generation": "recovery",
    "waiting": "idle",
    "paused": "idle",
    "unpaused": "training",
    "settled": "training",
    "resumed": "training",
    "ledger": "training",
    "step": "training",
    "stopped": "offline",
    "finished": "offline",
    "over": "offline",
}
"""The state of a run after a record; other records do not change it."""


@dataclass(frozen=True)
class GoodputBreakdown:
    """Seconds of each kind."""

    seconds: dict[str, float]
    measured: bool
    """Whether the run recorded its phases; if not, all training time is `other`."""

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the total time; their sum is 1 unless no time has passed."""
        total = self.total_s
        return {kind: seconds / total if total else 0.0 for kind, seconds in self.seconds.items()}

    @property
    def goodput(self) -> float:
        """Share of the time without `offline` that went into computing steps that were kept."""
        wanted = self.total_s - self.seconds["offline"]
        return self.seconds["compute"] / wanted if wanted else 0.0

    def facts(self) -> dict[str, Any]:
        return {
            "total_s": round(self.total_s, 3),
            "goodput": round(self.goodput, 4),
            "measured": self.measured,
            "seconds": {kind: round(seconds, 3) for kind, seconds in self.seconds.items()},
            "shares": {kind: round(share, 4) for kind, share in self.shares.items()},
        }


def goodput(records: Iterable[dict[str, Any]]) -> GoodputBreakdown:
    """Break down the records of a journal, oldest first."""
    reader = _BreakdownReader()
    for record in mended(records):
        reader.take(record)
    return reader.close()


class _BreakdownReader:
    """The breakdown so far."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._state = "start"
        self._clock: float | None = None
        self._open_s = self._start_s = self._paused_s = 0.0
        """Time of training, of a start and of pauses since the last ledger record."""
        self._computed: list[tuple[int, int, float]] = []
        """Kept steps, with their compute seconds."""
        self._measured = self._fresh = False
        self._awaited = 0
        """The generation that ends the recovery; records of an earlier one do not."""

    def take(self, record: dict[str, Any]) -> None:
        event, passed = str(record.get("event")), self._passed(record.get("time"))
        if event in BEGINS and self._state != "idle" and passed > OFFLINE_AFTER_S:
            self._seconds["offline"] += passed
        else:
            self._pass(passed)
        if event == "lost":
            self._silent(float(record.get("silent_s") or 0.0))
        elif event == "ledger":
            self._account(record)
        elif event == "started":
            self._leave_training()
            self._fresh = True
        elif event in ("resumed", "settled"):
            self._fresh = False
            self._undo(int(record["step"]))
            if self._state != "recovery":  # after a loss, a survivor may still record earlier steps
                self._leave_training()
        self._turn(event, record)

    def close(self) -> GoodputBreakdown:
        self._leave_training()
        return GoodputBreakdown(dict(self._seconds), self._measured)

    def _turn(self, event: str, record: dict[str, Any]) -> None:
        """Enter the state that follows a record."""
        if (event == "started" and self._state == "training") or (
            event in BEGINS and self._state == "offline"
        ):
            self._state = "start"
        if event in ("lost", "generation"):
            self._awaited = int(record.get("generation") or 0) + (event == "lost")
        elif event == "restarted":
            self._awaited = 0
        if event in STATES and not self._changes_nothing(event, record):
            self._state = STATES[event]

    def _changes_nothing(self, event: str, record: dict[str, Any]) -> bool:
        """Whether a record concerns a spare, a start, or steps from before the interruption."""
        if event == "lost" and record.get("rank") is None:
            return True
        if event == "generation":
            return self._state == "start"
        if event not in ("ledger", "step") or self._state in ("training", "start"):
            return False
        return self._state != "recovery" or int(record.get("generation") or 0) < self._awaited

    def _passed(self, time: float | None) -> float:
        """Return the seconds since the record before."""
        before = self._clock
        if time is None:
            return 0.0
        self._clock = time
        return 0.0 if before is None else time - before

    def _pass(self, seconds: float) -> None:
        if self._state == "training":
            self._open_s += seconds
        elif self._state == "start":
            self._start_s += seconds
        elif self._state == "recovery":
            self._seconds["recovery"] += min(seconds, MAX_RECOVERY_S)
        else:
            self._seconds[self._state] += seconds
            self._paused_s += seconds if self._state == "idle" else 0.0

    def _silent(self, seconds: float) -> None:
        """Count the time before a loss was detected as recovery."""
        moved = min(seconds, self._open_s, MAX_RECOVERY_S)
        self._open_s -= moved
        self._seconds["recovery"] += moved

    def _account(self, record: dict[str, Any]) -> None:
        """Add the phases that rank 0 measured; the pause among them is already counted."""
        spent = {kind: float(seconds) for kind, seconds in record.get("spent", {}).items()}
        self._measured = self._measured or bool(spent)
        for kind in MEASURED:
            self._seconds[kind] += spent.get(kind, 0.0)
        control = max(0.0, spent.get("control", 0.0) - self._paused_s)
        self._seconds["other"] += control
        rest = self._open_s - control - sum(spent.get(kind, 0.0) for kind in MEASURED)
        starting = max(0.0, self._start_s + min(rest, 0.0))  # the first step may be part of the start
        self._seconds["start"] += starting
        self._seconds["other"] += min(max(rest, 0.0), SLACK_S)
        self._open_s = self._start_s = self._paused_s = 0.0
        first, last = record["steps"]
        if self._fresh and first == 0:
            self._undo(0)
        self._fresh = False
        self._computed.append((first, last, spent.get("compute", 0.0)))

    def _undo(self, step: int) -> None:
        """Move the compute time of steps that were rolled back to `undone`."""
        kept: list[tuple[int, int, float]] = []
        for first, last, seconds in self._computed:
            share = min(1.0, max(0.0, (step - first) / max(1, last - first)))
            self._seconds["compute"] -= seconds * (1 - share)
            self._seconds["undone"] += seconds * (1 - share)
            if share > 0:
                kept.append((first, min(last, step), seconds * share))
        self._computed = kept

    def _leave_training(self) -> None:
        """Add training time that no ledger record covers; a run without ledger has only this."""
        self._seconds["other"] += min(self._open_s, SLACK_S) if self._measured else self._open_s
        self._seconds["start"] += self._start_s
        self._open_s = self._start_s = 0.0
