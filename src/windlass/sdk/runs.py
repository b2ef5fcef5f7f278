"""Replies of the control API about runs, typed and frozen.

Every record keeps all fields of the reply: a field without a property here, as of a newer server, is read as
`run["key"]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from windlass.sdk.tables import bar, curve, facts_table, grid, paragraph, shown

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_PLACES = 60
OVER = ("stopped", "finished")


@dataclass(frozen=True)
class Facts:
    """The fields of a JSON reply."""

    fields: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)


class RunStatus(Facts):
    """The state of a run."""

    @property
    def name(self) -> str:
        """NAME/NUMBER."""
        return str(self["run"])

    @property
    def state(self) -> str:
        """One of "new", "running", "paused", "stopped", "finished"."""
        return str(self["state"])

    @property
    def is_over(self) -> bool:
        """Whether the run has ended: no process works on it any more."""
        return self.state in OVER

    @property
    def step(self) -> int:
        return int(self["step"])

    @property
    def steps(self) -> int | None:
        """How many steps are planned."""
        return cast(int | None, self.effective.get("steps"))

    @property
    def loss(self) -> float | None:
        """Of the newest step in the journal; None also if it is not a number."""
        return cast(float | None, self["loss"])

    @property
    def validation_loss(self) -> float | None:
        return cast(float | None, self["validation_loss"])

    @property
    def tokens_per_s(self) -> float | None:
        return cast(float | None, self["tokens_per_s"])

    @property
    def effective(self) -> Mapping[str, Any]:
        """The settings that training really uses."""
        return cast(Mapping[str, Any], self.get("effective", {}))

    @property
    def predicted(self) -> Mapping[str, Any]:
        """What the planner expects: speed, time, loss, memory."""
        return cast(Mapping[str, Any], self.get("predicted", {}))

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """Every change: who, when, before and after."""
        return cast(Sequence[Mapping[str, Any]], self.get("history", ()))

    def __str__(self) -> str:
        return f"{self.name}: {self.state}, step {self.step} of {shown(self.steps)}, loss {shown(self.loss)}"

    def _repr_html_(self) -> str:
        share = self.step / self.steps if self.steps else None
        expected = self.predicted
        rows = {
            "run": self.name,
            "state": self.state,
            "loss": self.loss,
            "loss expected": expected.get("loss"),
            "validation loss": self.validation_loss,
            "tokens/s": self.tokens_per_s,
            "tokens/s expected": expected.get("tokens_per_s"),
            "layout": self.effective.get("layout"),
            "changes": len(self.history),
        }
        return bar(share, f"step {self.step} of {shown(self.steps)}") + facts_table(rows)


class Runs(list[RunStatus]):
    """Runs; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        heads = ("run", "state", "step", "of", "loss", "validation loss", "tokens/s")
        rows = [
            (run.name, run.state, run.step, run.steps, run.loss, run.validation_loss, run.tokens_per_s)
            for run in self
        ]
        return grid(heads, rows)


class GoodputReport(Facts):
    """How a run spent its time."""

    @property
    def goodput(self) -> float:
        """The share of the time meant for training that went into steps that count."""
        return float(self["goodput"])

    @property
    def total_s(self) -> float:
        return float(self["total_s"])

    @property
    def seconds(self) -> Mapping[str, float]:
        return cast(Mapping[str, float], self["seconds"])

    @property
    def shares(self) -> Mapping[str, float]:
        return cast(Mapping[str, float], self["shares"])

    def _repr_html_(self) -> str:
        rows = [(kind, spent, f"{self.shares.get(kind, 0.0):.1%}") for kind, spent in self.seconds.items()]
        return bar(self.goodput, f"goodput {self.goodput:.1%}") + grid(("what", "seconds", "share"), rows)


class IncidentReport(Facts):
    """An incident, and how it was resolved."""

    @property
    def kind(self) -> str:
        return str(self["kind"])

    @property
    def sentence(self) -> str:
        """What happened, in plain words."""
        return str(self["sentence"])

    def __str__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        return paragraph(self.sentence)


class AuditReport(Facts):
    """Whether every sample was used exactly once."""

    @property
    def ok(self) -> bool:
        return bool(self["ok"])

    @property
    def samples_lost(self) -> int:
        return int(self["samples_lost"])

    @property
    def samples_repeated(self) -> int:
        return int(self["samples_repeated"])

    def _repr_html_(self) -> str:
        return facts_table({key: value for key, value in self.fields.items() if not isinstance(value, list)})


@dataclass(frozen=True)
class MetricCurve:
    """A figure over the steps of a run: a picture in a notebook, a line of blocks as text."""

    name: str
    points: tuple[tuple[float, float], ...]

    def __len__(self) -> int:
        return len(self.points)

    def __str__(self) -> str:
        values = [y for _, y in self.points]
        if not values:
            return f"{self.name}: nothing yet"
        low, high = min(values), max(values)
        picked = values[:: max(1, -(-len(values) // SPARK_PLACES))]
        top = len(SPARKS) - 1
        marks = (SPARKS[round((y - low) / (high - low) * top) if high > low else 0] for y in picked)
        return f"{self.name} {''.join(marks)} {shown(values[0])} to {shown(values[-1])}"

    def _repr_html_(self) -> str:
        return curve(self.points, self.name)


def curve_of(records: Iterable[Mapping[str, Any]], name: str, event: str) -> MetricCurve:
    """Draw one figure from the records of a journal; steps that were undone are left out."""
    points: dict[float, float] = {}
    for record in records:
        if record.get("event") == "resumed":
            points = {step: value for step, value in points.items() if step <= record["step"]}
        elif record.get("event") == event and isinstance(record.get(name), int | float):
            points[float(record["step"])] = float(record[name])
    return MetricCurve(name, tuple(sorted(points.items())))
