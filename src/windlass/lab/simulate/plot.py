"""Plots a report over time: GPU use, waiting jobs, nodes that are down, and the shares of tenants.

Input: a report (report.py). Output: one SVG of four rows, alone or in a page that opens offline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from windlass.plan.report.drawing import Axis, axis_of, frame, label, legend, path, picture
from windlass.spec.units import format_count

WIDTH, ROW, LEFT, RIGHT, TOP, BELOW = 900.0, 170.0, 60.0, 16.0, 34.0, 28.0
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#4b5563")
STYLE = (
    "svg{font:12px system-ui,sans-serif;background:#fff}.grid{stroke:#e5e7eb}.label{fill:#4b5563}"
    ".head{fill:#111827;font-weight:600}polyline{fill:none;stroke-width:1.5}"
    + "".join(f".c{i}{{stroke:{c}}}rect.c{i}{{fill:{c};stroke:none}}" for i, c in enumerate(COLOURS))
)

Row = tuple[str, Mapping[str, Sequence[float]], Callable[[float], str], bool]
"""A title, lines by name, the format of a value, and whether it is a share of 1."""


def picture_svg(report: Mapping[str, Any]) -> str:
    """Return the four rows as one SVG."""
    samples = report["samples"]
    hours = [each["hour"] for each in samples] or [0.0]
    rows = list(_rows(report, samples))
    parts = [f"<style>{STYLE}</style>"]
    for number, row in enumerate(rows):
        parts += _draw(row, hours, number * (ROW + TOP + BELOW) + TOP)
    return picture(WIDTH, len(rows) * (ROW + TOP + BELOW), _title(report), parts)


def page_html(report: Mapping[str, Any]) -> str:
    """Return a page with the plot and the whole report."""
    data = json.dumps(report, indent=1).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(_title(report))}</title>'
        f"<body><h1>{escape(_title(report))}</h1>{picture_svg(report)}"
        f'<script type="application/json" id="report">{data}</script></body></html>\n'
    )


def _title(report: Mapping[str, Any]) -> str:
    scenario = report["scenario"]
    fleet = f"{scenario['nodes']:,} machines, {scenario['hours']:g} h"
    return f"{fleet}, scenario {scenario['name']}, seed {scenario['seed']}"


def _rows(report: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> list[Row]:
    def line(key: str) -> list[float]:
        return [float(each[key]) for each in samples]

    names = sorted({name for each in samples for name in each["shares"]})
    shares = {name: [each["shares"].get(name, 0.0) for each in samples] for name in names}
    return [
        ("GPUs: part in use and idle", {"useful": line("useful"), "idle": line("idle")}, _percent, True),
        ("jobs", {"waiting": line("waiting"), "running": line("running")}, format_count, False),
        ("GPUs: part that is down", {"down": line("down")}, _percent, False),
        ("dominant shares of tenants", shares, _percent, False),
    ]


def _draw(row: Row, hours: Sequence[float], top: float) -> list[str]:
    head, lines, say, whole = row
    across = Axis(0.0, max(*hours, 1e-6), LEFT, WIDTH - RIGHT)
    values = [value for line in lines.values() for value in line]
    up = Axis(0.0, 1.0, top + ROW, top) if whole else axis_of([*values, 1e-9], top + ROW, top, zero=True)
    parts = frame(across, up, lambda hour: f"{hour:g} h", say)
    parts.append(label(LEFT, top - 18, head, "head"))
    parts += legend(LEFT + 260, top - 18, [(_colour(i), name) for i, name in enumerate(lines)])
    for number, line in enumerate(lines.values()):
        points = [(across.at(hour), up.at(value)) for hour, value in zip(hours, line, strict=False)]
        parts.append(path(points, _colour(number)))
    return parts


def _colour(number: int) -> str:
    return f"c{number % len(COLOURS)}"


def _percent(part: float) -> str:
    return f"{part:.1%}" if 0 < part < 0.01 else f"{part:.0%}"
