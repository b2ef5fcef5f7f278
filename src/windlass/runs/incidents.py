"""Lists what went wrong in a run, how it was handled, and what it cost.

Input: the journal of a run. Output: incidents, oldest first. An incident begins with a failure and ends when
training continues; losses before that are the same incident, because the run recovers from them together.
Times are corrected first (`clock_skew`), because several clocks wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ValidationError

from windlass.runs.clock_skew import mended
from windlass.spec.layout import Layout
from windlass.spec.units import format_seconds

Kind = Literal["loss", "restart", "coordinator", "wait", "checkpoint", "end"]

AT_ONCE_S = 0.05
SHORT_WAIT_S = 2.0
"""A wait without a loss up to this long is a start or a change of members, not an incident."""
ENDS = {"finished", "stopped", "over"}


@dataclass(frozen=True)
class Incident:
    """Something that went wrong."""

    kind: Kind
    time: float
    """When it was detected, in seconds since 1970."""
    what: str
    """What failed, and how it was detected."""
    done: str
    """How it was handled; empty while it is not."""
    workers: tuple[str, ...] = ()
    seconds: float | None = None
    """From the failure until training continued; None if it did not stop, or has not continued yet."""
    steps_lost: int = 0
    samples_redone: int = 0
    source: str | None = None
    """Source of the state that training continued from: memory, checkpoint or start."""
    layout: str | None = None
    over: bool = True
    """Whether the run continued."""

    @property
    def sentence(self) -> str:
        when = datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return f"{when} {self.what}; {self.done or 'not recovered yet'}"

    def facts(self) -> dict[str, Any]:
        return {**asdict(self), "sentence": self.sentence}


def incidents(records: Iterable[dict[str, Any]]) -> list[Incident]:
    """Find the incidents in the records of a journal, oldest first."""
    reader = _IncidentReader()
    for record in mended(records):
        reader.take(record)
    return reader.close()


@dataclass
class _Trouble:
    """An incident that is not over."""

    kind: Kind
    time: float
    what: list[str]
    workers: list[str]
    began: float
    """When it failed, which is before it was detected."""
    waited: str = ""
    resumption: str = ""
    layout: str | None = None
    steps_lost: int = 0
    samples_redone: int = 0


class _IncidentReader:
    """The incidents so far."""

    def __init__(self) -> None:
        self._incidents: list[Incident] = []
        self._open: _Trouble | None = None
        self._running = False
        self._step = self._samples = 0
        self._unsaved: dict[tuple[int, str], tuple[Incident, int]] = {}
        """Checkpoints that could not be saved, by step and tier, with the number of attempts."""

    def take(self, record: dict[str, Any]) -> None:
        event = str(record.get("event"))
        follow = getattr(self, f"_on_{event}", None)
        if event in ENDS:
            self._running = False
            if self._open is not None:
                self._finish(self._open, None, None, done="the run ended before it could go on")
        if follow is not None:
            follow(record, float(record.get("time") or 0.0))

    def close(self) -> list[Incident]:
        if self._open is not None:
            self._finish(self._open, None, None)
        failed = [incident for incident, _ in self._unsaved.values()]
        return sorted([*self._incidents, *failed], key=lambda incident: incident.time)

    def _on_lost(self, record: dict[str, Any], time: float) -> None:
        silent, worker = float(record.get("silent_s") or 0.0), str(record["worker"])
        what = f"{_who(record)} {_cause(record)}, seen {_after(silent)}"
        if record.get("rank") is None:
            self._incidents.append(Incident("loss", time, what, "training did not stop", (worker,)))
            return
        trouble = self._trouble("loss", time, time - silent)
        trouble.what.append(what)
        trouble.workers.append(worker)

    def _on_restarted(self, record: dict[str, Any], time: float) -> None:
        trouble = self._trouble("restart", time, time)
        trouble.what.append(str(record.get("message", "a process failed")).splitlines()[0])
        trouble.resumption = "all processes were started again"

    def _on_waiting(self, record: dict[str, Any], time: float) -> None:
        trouble = self._trouble("wait", time, time)
        trouble.waited = str(record.get("reason", ""))
        if trouble.kind == "wait":
            trouble.what = [f"the run waited: {trouble.waited}"]

    def _on_generation(self, record: dict[str, Any], _time: float) -> None:
        self._running = True
        if self._open is not None:
            count = len(record.get("members", []))
            self._open.layout = _layout(record.get("layout"))
            self._open.resumption = f"{count} worker{'s' * (count != 1)} went on with {self._open.layout}"

    def _on_resumed(self, record: dict[str, Any], time: float) -> None:
        self._set_back(record)
        if self._open is not None and self._open.kind == "restart":
            source = str(record.get("source", "checkpoint"))
            self._finish(self._open, time, source)

    def _on_settled(self, record: dict[str, Any], time: float) -> None:
        self._set_back(record)
        self._running = True
        if self._open is not None:
            self._open.steps_lost = max(self._open.steps_lost, int(record.get("rolled_back") or 0))
            self._finish(self._open, time, str(record.get("source", "memory")))

    def _on_ledger(self, record: dict[str, Any], time: float) -> None:
        """Keep the step. A run that was restarted without a checkpoint continues with the first step."""
        if self._open is not None and self._open.kind == "restart" and record["steps"][0] == 0:
            self._set_back({"step": 0, "samples": 0})
            self._finish(self._open, time, "start")
        self._step, self._samples = int(record["steps"][1]), int(record["samples"][1])
        self._running = True

    def _on_coordinator(self, record: dict[str, Any], time: float) -> None:
        if self._running:
            what = f"the coordinator was lost: {record.get('reason', 'it fell silent')}"
            done = f"the one on {record.get('node')} took over as number {record.get('epoch')}"
            self._incidents.append(Incident("coordinator", time, what, f"{done}, steps went on meanwhile"))

    def _on_checkpoint_failed(self, record: dict[str, Any], time: float) -> None:
        step, tier = int(record["step"]), str(record.get("tier", "local"))
        where = {"store": " in the store", "memory": " in memory"}.get(tier, "")
        what = f"the checkpoint of step {step} could not be kept{where}: {_first_line(record)}"
        first, tried = self._unsaved.get((step, tier), (Incident("checkpoint", time, what, ""), 0))
        times = "once" if tried == 0 else f"{tried + 1} times"
        self._unsaved[step, tier] = replace(first, done=f"tried {times}, training went on"), tried + 1

    def _on_checkpoint(self, record: dict[str, Any], time: float) -> None:
        """A checkpoint that failed at first may be saved later."""
        step, tier = int(record["step"]), str(record.get("tier", "local"))
        if (step, tier) in self._unsaved:
            first, tried = self._unsaved.pop((step, tier))
            later = format_seconds(max(0.0, time - first.time))
            done = f"it was kept {later} later, at attempt {tried + 1}; training went on"
            self._incidents.append(replace(first, done=done))

    def _on_verified(self, record: dict[str, Any], time: float) -> None:
        if not record.get("ok", True):
            what = (
                f"the checkpoint of step {record.get('step')} did not pass its check: {_first_line(record)}"
            )
            self._incidents.append(Incident("checkpoint", time, what, "training went on"))

    def _on_warning(self, record: dict[str, Any], time: float) -> None:
        message = _first_line(record)
        if message.startswith("checkpoint skipped"):
            self._incidents.append(Incident("checkpoint", time, message, "the one before it was used"))

    def _on_over(self, record: dict[str, Any], time: float) -> None:
        if record.get("outcome") == "failed":
            what = f"the run failed in generation {record.get('generation')}"
            self._incidents.append(Incident("end", time, what, "it was ended", over=False))

    def _trouble(self, kind: Kind, time: float, began: float) -> _Trouble:
        """Return the incident under way, or a new one."""
        if self._open is None:
            self._open = _Trouble(kind, time, [], [], began)
        elif self._open.kind == "wait" and kind == "loss":
            self._open.kind = "loss"
        return self._open

    def _set_back(self, record: dict[str, Any]) -> None:
        """Count the steps and samples that a roll-back to this state undoes."""
        step = int(record["step"])
        samples = int(record["samples"]) if record.get("samples") is not None else self._samples
        if self._open is not None:
            self._open.steps_lost = max(self._open.steps_lost, self._step - step)
            self._open.samples_redone += max(0, self._samples - samples)
        self._step, self._samples = min(self._step, step), min(self._samples, samples)

    def _finish(self, trouble: _Trouble, time: float | None, source: str | None, done: str = "") -> None:
        self._open = None
        seconds = None if time is None else round(max(0.0, time - trouble.began), 3)
        if trouble.kind == "wait" and seconds is not None and seconds < SHORT_WAIT_S:
            return
        self._incidents.append(
            Incident(
                kind=trouble.kind,
                time=trouble.time,
                what=" and ".join(trouble.what),
                done=done if seconds is None else _outcome(trouble, seconds, source),
                workers=tuple(trouble.workers),
                seconds=seconds,
                steps_lost=max(0, trouble.steps_lost),
                samples_redone=trouble.samples_redone,
                source=source,
                layout=trouble.layout,
                over=seconds is not None,
            )
        )


def _outcome(trouble: _Trouble, seconds: float, source: str | None) -> str:
    """Describe how training continued, and at what cost."""
    where = {"memory": "from memory", "checkpoint": "from a checkpoint", "start": "from the beginning"}
    how = trouble.resumption or "the run went on"
    parts = [f"{how} {where.get(str(source), '')} after {format_seconds(seconds)}"]
    if trouble.waited and trouble.kind != "wait":
        parts.append(f"it waited meanwhile: {trouble.waited}")
    lost = trouble.steps_lost
    if lost > 0:
        redone = f" ({trouble.samples_redone} samples)" if trouble.samples_redone else ""
        parts.append(f"{lost} step{'s' * (lost != 1)}{redone} rolled back and done again")
    else:
        parts.append("no step was lost")
    return ", ".join(parts)


def _who(record: dict[str, Any]) -> str:
    rank = record.get("rank")
    role = "a spare" if rank is None else f"rank {rank}"
    return f"worker {record['worker']} ({role} on {record.get('node', '?')})"


def _cause(record: dict[str, Any]) -> str:
    detail, how = str(record.get("detail") or "").strip(), str(record.get("how"))
    if how == "exit" and detail.startswith(("was ", "ended ")):
        return detail
    named = {
        "connection": "lost its connection",
        "silent": "fell silent",
        "stuck": "was stuck",
        "slow": "was too slow",
        "partition": "was cut off from the others",
    }
    return ": ".join(filter(None, [named.get(how, "ended"), detail]))


def _after(silent_s: float) -> str:
    return "at once" if silent_s < AT_ONCE_S else f"after {silent_s:.1f} s"


def _layout(layout: object) -> str:
    """Return a layout in short form; journals hold all its settings."""
    try:
        return str(Layout.model_validate(layout)) if isinstance(layout, dict) else str(layout)
    except ValidationError:
        return "another layout"


def _first_line(record: dict[str, Any]) -> str:
    return (str(record.get("message") or "").splitlines() or [""])[0]
