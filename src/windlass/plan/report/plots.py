"""The pictures of a plan: front, memory, timeline, cost against deadline.

Input: parts of a plan (docs/formats/plan.md). Output: SVG. Every mark has a tooltip with its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.plan.cost.money import format_dollars
from windlass.plan.fleet.timeline import Kind, timeline
from windlass.plan.report.drawing import (
    Axis,
    axis_of,
    bar,
    dot,
    frame,
    label,
    legend,
    line,
    path,
    picture,
)
from windlass.spec.units import format_bytes, format_seconds

Plan = Mapping[str, Any]

WIDTH = 720.0
LEFT, RIGHT, TOP, PLOT_BOTTOM = 92.0, 24.0, 34.0, 330.0
RADIUS = {"other": 3.0, "best": 5.0, "chosen": 7.0}
ROW = 26.0
MEMORY_ROW = 54.0
FRONT_KINDS = (("chosen", "chosen"), ("best", "on the front"), ("other", "others"))
MAX_STAGES = 16
HOUR, DAY = 3600, 86400
TIMES = tuple(
    count * unit
    for unit, counts in ((1, (1, 2, 5, 10, 20)), (60, (0.5, 1, 2, 5, 10, 20)), (HOUR, (0.5, 1, 2, 3, 6, 12)))
    for count in counts
) + tuple(days * DAY for days in (1, 2, 3, 5, 7, 10, 14, 20, 30, 60, 90, 180, 365, 730, 1825, 3650))
"""That people call round."""
MAX_TIMES = 7
KINDS: tuple[Kind, ...] = ("forward", "backward", "communication", "waiting", "update")


def front_svg(plan: Plan) -> str:
    """Draw time against money, or against memory if money is unknown or none; the best points are joined."""
    priced = all(point["dollars"] for point in plan["front"])
    height, size = ("dollars", format_dollars) if priced else ("memory_bytes", format_bytes)
    front = sorted(_drawable(plan["front"], height), key=lambda point: point["seconds"])
    others = _drawable(plan["weighed"], height)
    across, up = _axes([*front, *others], height)
    edge = [point for point in front if _unbeaten(point, front, height)]
    chosen = _identity(plan["layouts"][0]) if plan["layouts"] else None
    parts = [
        *frame(across, up, _round_time, size, _times(across)),
        *(_mark(point, across, up, height, "other") for point in others),
        path(((across.at(p["seconds"]), up.at(p[height])) for p in edge), "edge"),
        *(_mark(point, across, up, height, "best") for point in front if _identity(point) != chosen),
        *(_mark(point, across, up, height, "chosen") for point in front if _identity(point) == chosen),
        label(LEFT, 16, "money" if priced else "memory of the fullest device", "axis"),
        label(WIDTH - RIGHT, PLOT_BOTTOM + 36, "time of the whole run", "axis", "end"),
        *legend(LEFT + 220, 16, FRONT_KINDS[0 if chosen else 1 :]),
    ]
    return picture(WIDTH, PLOT_BOTTOM + 46, "Time, money and memory of the layouts", parts)


def memory_svg(layouts: Sequence[Plan]) -> str:
    """Draw what fills the fullest device of each layout, with the limit."""
    names = list(dict.fromkeys(name for layout in layouts for name in layout["memory_parts_bytes"]))
    sizes = [n for layout in layouts for n in (layout["memory_range_bytes"][1], layout["limit_bytes"])]
    across = axis_of(sizes, 12.0, WIDTH - RIGHT - 60, zero=True)
    bottom = TOP + MEMORY_ROW * len(layouts)
    parts = [*legend(12, 16, [(f"part{n}", name) for n, name in enumerate(names)], step=6.2)]
    for mark in across.ticks(5, unit=1024.0 ** int(math.log(across.high, 1024))):
        parts += [line(across.at(mark), TOP, across.at(mark), bottom)]
        parts += [label(across.at(mark), bottom + 16, format_bytes(mark), anchor="middle")]
    for row, layout in enumerate(layouts):
        parts += _memory_row(layout, names, across, TOP + MEMORY_ROW * row + 20)
    return picture(WIDTH, bottom + 26, "Memory of the fullest device", parts)


def timeline_svg(layout: Plan) -> str:
    """Draw one step, a row for each stage of the pipeline."""
    pieces = timeline(layout)
    stages = layout["choices"]["pp"]
    shown = sorted({round(n * (stages - 1) / max(1, MAX_STAGES - 1)) for n in range(MAX_STAGES)})
    shown = [stage for stage in shown if stage < stages] if stages > MAX_STAGES else list(range(stages))
    across = Axis(0.0, max(piece.end_s for piece in pieces), LEFT, WIDTH - RIGHT)
    bottom = TOP + ROW * len(shown)
    parts = [*legend(LEFT, 16, [(kind, kind) for kind in KINDS])]
    for row, stage in enumerate(shown):
        y = TOP + ROW * row
        parts += [label(LEFT - 8, y + 16, f"stage {stage}", anchor="end")]
        for piece in pieces:
            if piece.stage == stage:
                begin, end = across.at(piece.begin_s), across.at(piece.end_s)
                tooltip = f"{piece.kind}: {_brief(piece.end_s - piece.begin_s)}"
                parts += [bar(begin, y + 2, end - begin, ROW - 5, piece.kind, tooltip)]
    for mark in across.ticks():
        parts += [label(across.at(mark), bottom + 16, _brief(mark), anchor="middle")]
    return picture(WIDTH, bottom + 24, "Timeline of a step", parts)


def deadline_svg(plan: Plan) -> str:
    """Draw what each number of devices costs and when it is done, with the requested limits."""
    points = sorted(_drawable(plan["by_devices"], "dollars"), key=lambda point: point["seconds"])
    limits = {"seconds": plan["request"]["deadline_s"], "dollars": plan["request"]["budget_dollars"]}
    across, up = _axes([*points, limits], "dollars")
    parts = [
        *frame(across, up, _round_time, format_dollars, _times(across)),
        *_limits(limits, across, up),
        path(((across.at(p["seconds"]), up.at(p["dollars"])) for p in points), "edge"),
    ]
    for point in points:
        parts += [_mark(point, across, up, "dollars", "best")]
        parts += [label(across.at(point["seconds"]) + 8, up.at(point["dollars"]) - 8, f"{point['devices']}")]
    parts += [
        label(LEFT, 16, "money, by number of devices", "axis"),
        label(WIDTH - RIGHT, PLOT_BOTTOM + 36, "time of the whole run", "axis", "end"),
    ]
    return picture(WIDTH, PLOT_BOTTOM + 46, "Cost against deadline", parts)


def _limits(limits: Plan, across: Axis, up: Axis) -> list[str]:
    parts = []
    if limits["seconds"] is not None:
        x = across.at(limits["seconds"])
        side, anchor = (6, "start") if x < WIDTH / 2 else (-6, "end")
        parts += [line(x, up.start, x, up.stop, "limit")]
        parts += [label(x + side, TOP + 12, "deadline", "warn", anchor)]
    if limits["dollars"] is not None:
        y = up.at(limits["dollars"])
        parts += [line(across.start, y, across.stop, y, "limit")]
        parts += [label(across.stop, y - 6, "budget", "warn", "end")]
    return parts


def _drawable(points: Sequence[Plan], height: str) -> list[Plan]:
    """Leave out what has no price, costs nothing or never ends: a logarithmic axis has no place for it."""
    return [point for point in points if point[height] and math.isfinite(point["seconds"])]


def _axes(points: Sequence[Plan], height: str) -> tuple[Axis, Axis]:
    """Return logarithmic axes that hold all points; a limit that was not given bounds nothing."""
    times = (point["seconds"] for point in points if point["seconds"] is not None)
    sizes = (point[height] for point in points if point[height] is not None)
    across = axis_of(times, LEFT, WIDTH - RIGHT, log=True)
    return across, axis_of(sizes, PLOT_BOTTOM, TOP, log=True)


def _identity(layout: Plan) -> tuple[str, int, float]:
    return layout["name"], layout["devices"], layout["seconds"]


def _unbeaten(point: Plan, points: Sequence[Plan], height: str) -> bool:
    """Whether no point is at least as good in both directions of the picture and better in one."""
    return not any(
        other["seconds"] <= point["seconds"]
        and other[height] <= point[height]
        and (other["seconds"], other[height]) != (point["seconds"], point[height])
        for other in points
    )


def _mark(point: Plan, across: Axis, up: Axis, height: str, kind: str) -> str:
    tooltip = (
        f"{point['name']} on {point['devices']} devices: {format_seconds(point['seconds'])},"
        f" {format_dollars(point['dollars'])}, {format_bytes(point['memory_bytes'])}"
    )
    return dot(across.at(point["seconds"]), up.at(point[height]), RADIUS[kind], kind, tooltip)


def _memory_row(layout: Plan, names: Sequence[str], across: Axis, y: float) -> list[str]:
    parts = [label(across.start, y - 6, layout["name"])]
    x = across.start
    for number, name in enumerate(names):
        size = layout["memory_parts_bytes"].get(name, 0.0)
        end = x + across.at(size) - across.at(0.0)
        parts += [bar(x, y, end - x, ROW, f"part{number}", f"{name}: {format_bytes(size)}")]
        x = end
    low, high = (across.at(size) for size in layout["memory_range_bytes"])
    limit = across.at(layout["limit_bytes"])
    return [
        *parts,
        line(low, y + ROW / 2, high, y + ROW / 2, "range"),
        line(limit, y - 5, limit, y + ROW + 5, "limit"),
        label(WIDTH - 8, y + 17, format_bytes(layout["memory_bytes"]), anchor="end"),
    ]


def _times(across: Axis) -> list[float]:
    """Return round times within an axis, every other one where there are many."""
    inside = [time for time in TIMES if across.low <= time <= across.high]
    return inside[:: 1 + len(inside) // MAX_TIMES] or across.ticks()


def _round_time(seconds: float) -> str:
    return f"{seconds / DAY:g}d" if seconds >= DAY else format_seconds(seconds)


def _brief(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 10 else f"{seconds:.3g} s"
