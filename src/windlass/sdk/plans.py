"""Plans (docs/formats/plan.md), typed and frozen. Pure: JSON in, records out.

plan = Plan.load("plan.json")                # windlass plan job.toml --fleet 8xH100-SXM5 --json > plan.json
plan.best.seconds, plan.best.dollars
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

from windlass.sdk.runs import Facts
from windlass.sdk.tables import curve, facts_table, grid, paragraph, stacked
from windlass.spec.errors import BadInput
from windlass.spec.read import read_toml
from windlass.spec.units import format_bytes, format_count, format_seconds

FORMAT = "windlass-plan-1"

Pair = tuple[float, float]
JobTables = str | PathLike[str] | Mapping[str, Any]


class PlanLayout(Facts):
    """One way to run a job: its layout, duration, cost and memory."""

    @property
    def name(self) -> str:
        """For people and for `--layout`: dp=8,tp=8,pp=4."""
        return str(self["name"])

    @property
    def choices(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], self["choices"])

    @property
    def device(self) -> str:
        return str(self["device"])

    @property
    def devices(self) -> int:
        return int(self["devices"])

    @property
    def step_s(self) -> float:
        return float(self["step_s"])

    @property
    def step_parts_s(self) -> Mapping[str, float]:
        return cast(Mapping[str, float], self["step_parts_s"])

    @property
    def seconds(self) -> float:
        """Of the whole run, failures and checkpoints included."""
        return float(self["seconds"])

    @property
    def seconds_range(self) -> Pair:
        return _pair(self["seconds_range"]) or (self.seconds, self.seconds)

    @property
    def memory_bytes(self) -> float:
        """Of the fullest device."""
        return float(self["memory_bytes"])

    @property
    def limit_bytes(self) -> float:
        """What that device has."""
        return float(self["limit_bytes"])

    @property
    def memory_parts_bytes(self) -> Mapping[str, float]:
        return cast(Mapping[str, float], self["memory_parts_bytes"])

    @property
    def dollars(self) -> Pair | None:
        """Lowest and highest price, or None where none is known."""
        return _pair(self["dollars"])

    @property
    def tokens_s(self) -> float:
        return float(self["tokens_s"])

    @property
    def loss(self) -> float | None:
        return cast(float | None, self.get("loss"))


class PlanPoint(Facts):
    """A layout as a point to compare: seconds, dollars, bytes."""

    @property
    def name(self) -> str:
        return str(self["name"])

    @property
    def devices(self) -> int:
        return int(self["devices"])

    @property
    def seconds(self) -> float:
        return float(self["seconds"])

    @property
    def dollars(self) -> float | None:
        return cast(float | None, self["dollars"])

    @property
    def memory_bytes(self) -> float:
        return float(self["memory_bytes"])


class PlanWay(Facts):
    """A change that would meet the deadline or the budget."""

    @property
    def way(self) -> str:
        return str(self["way"])

    @property
    def changes(self) -> Mapping[str, Any]:
        """The changed settings, by name."""
        return cast(Mapping[str, Any], self["changes"])

    @property
    def sentence(self) -> str:
        return str(self["sentence"])


@dataclass(frozen=True)
class NoSolution:
    """Why there is no plan, and which changes would allow one."""

    binding: str
    """"memory", "time", "money" or "divisibility"."""
    sentence: str
    fixes: tuple[PlanWay, ...]


class Plan(Facts):
    """How many machines, how long, how much; or why there is no solution."""

    @classmethod
    def read(cls, text: str | bytes | Mapping[str, Any]) -> Plan:
        """Read what `windlass plan --fleet ... --json` printed, or its JSON."""
        fields = text if isinstance(text, Mapping) else json.loads(text)
        if not isinstance(fields, Mapping) or fields.get("format") != FORMAT:
            raise BadInput(
                f"this is not a plan of the format {FORMAT}", hint="windlass plan JOB --fleet FLEET --json"
            )
        return cls(fields)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan from a file."""
        return cls.read(Path(path).read_bytes())

    @property
    def is_solved(self) -> bool:
        return bool(self["outcome"] == "plan")

    @property
    def layouts(self) -> tuple[PlanLayout, ...]:
        """The best first."""
        return tuple(PlanLayout(layout) for layout in self["layouts"])

    @property
    def best(self) -> PlanLayout:
        """The choice; BadInput, with the reason, where there is none."""
        if not self.layouts:
            reason = self.no_solution
            helps = [*(() if reason is None else reason.fixes), *self.ways]
            message = "no solution" if reason is None else reason.sentence
            raise BadInput(message, hint=helps[0].sentence if helps else None)
        return self.layouts[0]

    @property
    def front(self) -> tuple[PlanPoint, ...]:
        """Points that no other beats in time, money and memory at once."""
        return tuple(PlanPoint(point) for point in self["front"])

    @property
    def by_devices(self) -> tuple[PlanPoint, ...]:
        """For each number of devices its best layout."""
        return tuple(PlanPoint(point) for point in self["by_devices"])

    @property
    def ways(self) -> tuple[PlanWay, ...]:
        """Other ways to meet the deadline or the budget."""
        return tuple(PlanWay(way) for way in self["ways"])

    @property
    def explanation(self) -> tuple[str, ...]:
        return tuple(self["explanation"])

    @property
    def no_solution(self) -> NoSolution | None:
        reason = self["no_solution"]
        if reason is None:
            return None
        return NoSolution(reason["binding"], reason["sentence"], tuple(map(PlanWay, reason["fixes"])))

    def __str__(self) -> str:
        if not self.is_solved:
            reason = self.no_solution
            return f"{self['job']}: no solution" + ("" if reason is None else f": {reason.sentence}")
        best = self.best
        return (
            f"{self['job']}: {best.name} on {best.devices} {best.device}, {format_seconds(best.seconds)}, "
            f"{_money(best.dollars)}, {format_bytes(round(best.memory_bytes))} of each device"
        )

    def _repr_html_(self) -> str:
        if not self.is_solved:
            reason = self.no_solution
            fixes = [] if reason is None else [way.sentence for way in reason.fixes]
            return "".join(map(paragraph, [str(self), *fixes]))
        heads = ("layout", "devices", "time", "cost", "memory", "tokens/s")
        rows = [
            (
                layout.name,
                layout.devices,
                format_seconds(layout.seconds),
                _money(layout.dollars),
                format_bytes(round(layout.memory_bytes)),
                format_count(round(layout.tokens_s)),
            )
            for layout in self.layouts
        ]
        best = self.best
        points = [(point.seconds / 3600, point.dollars) for point in self.front if point.dollars is not None]
        drawn = curve(points, "dollars against hours", dots=True) if points else ""
        used, limit = format_bytes(round(best.memory_bytes)), format_bytes(round(best.limit_bytes))
        memory = paragraph(f"memory of a {best.device}: {used} of {limit}")
        memory += stacked(best.memory_parts_bytes, best.limit_bytes, "bytes")
        return grid(heads, rows) + memory + drawn + "".join(map(paragraph, self.explanation))


class PlanChoices(Facts):
    """Names that a plan request can use."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device["name"] for device in self["devices"])

    @property
    def sizes(self) -> tuple[str, ...]:
        """Published models whose sizes are known."""
        return tuple(sizes["name"] for sizes in self["sizes"])

    def _repr_html_(self) -> str:
        return facts_table({"devices": ", ".join(self.devices), "sizes": ", ".join(self.sizes)})


def tables_of(job: JobTables) -> dict[str, Any]:
    """Read a job: its tables, or the path of the file that has them."""
    return dict(job) if isinstance(job, Mapping) else read_toml(Path(job))


def _pair(values: Any) -> Pair | None:
    return None if values is None else (float(values[0]), float(values[1]))


def _money(dollars: Pair | None) -> str:
    if dollars is None:
        return "no price known"
    low, high = dollars
    return f"${low:,.0f}" if round(low) == round(high) else f"${low:,.0f} to ${high:,.0f}"
