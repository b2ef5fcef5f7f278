"""A plan as a page: one HTML file that opens offline and needs nothing else.

Input: a plan as docs/formats/plan.md says. Output: HTML with the pictures of plots.py; the plan itself
is in it as JSON, so that a report can be read again by a program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from windlass.plan.cost.money import format_dollars
from windlass.plan.report.plots import deadline_svg, front_svg, memory_svg, timeline_svg
from windlass.spec.units import format_bytes, format_count, format_seconds

Plan = Mapping[str, Any]
Row = tuple[str, ...]

LAYOUT_HEADS = ("layout", "devices", "step", "whole run", "tokens/s", "memory", "money", "energy")


def report_html(plan: Plan) -> str:
    """Return the page."""
    template = files("windlass.plan").joinpath("tables/report.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(template)
    return page.render(
        plan=plan,
        request=request_line(plan),
        figures=list(figures(plan)),
        tables=list(tables(plan)),
        pictures=[(title, note, Markup(svg)) for title, note, svg in pictures(plan)],
        facts=list(facts(plan)),
        data=Markup(json.dumps(plan).replace("<", "\\u003c")),
    )


def request_line(plan: Plan) -> str:
    """Summarise the request in one line."""
    model, fleet, request = plan["model"], plan["fleet"], plan["request"]
    groups = ", ".join(f"{group['devices']} x {group['device']}" for group in fleet["groups"])
    parts = [
        f"{format_count(model['parameters'])} weights ({model['layers']} layers, width {model['width']})",
        f"{format_count(model['tokens'])} tokens in {format_count(model['steps'])} steps of"
        f" {format_count(model['global_batch'])} x {format_count(model['sequence'])}",
        groups,
        f"minimise {request['objective']}",
    ]
    if request["deadline_s"] is not None:
        parts.append(f"within {format_seconds(request['deadline_s'])}")
    if request["budget_dollars"] is not None:
        parts.append(f"for at most {format_dollars(request['budget_dollars'])}")
    return "; ".join(parts) + "."


def figures(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the most important numbers."""
    if not plan["layouts"]:
        return
    best = plan["layouts"][0]
    low, high = best["seconds_range"]
    yield "time", format_seconds(best["seconds"])
    yield "between", f"{format_seconds(low)} and {format_seconds(high)}"
    yield "devices", f"{best['devices']} x {best['device']}"
    yield "money", money(best["dollars"])
    yield (
        "memory used",
        f"{best['memory_bytes'] / best['limit_bytes']:.0%} of {format_bytes(best['limit_bytes'])}",
    )
    if best["loss"] is not None:
        low, high = best["loss_range"]
        yield "expected loss", f"{best['loss']:.2f} ({low:.2f} to {high:.2f})"


def tables(plan: Plan) -> Iterator[tuple[str, list[Row], Row]]:
    """Yield title, rows and heads of each table."""
    if plan["layouts"]:
        counted = plan.get("counted")
        title = "Best layouts" if counted is None else f"Best of {format_count(counted)} layouts"
        yield title, [_layout_row(layout) for layout in plan["layouts"]], LAYOUT_HEADS


def pictures(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield title, note and picture of what there is to draw."""
    if plan["front"]:
        note = "No point of the front is beaten by another in time, money and memory at once."
        yield "Time against money", note, front_svg(plan)
    if plan["layouts"]:
        note = "The fullest device of each layout; the dashed line is what it has, the thin one the interval."
        yield "Memory", note, memory_svg(plan["layouts"])
        yield "Timeline of a step", timeline_note(plan["layouts"][0]), timeline_svg(plan["layouts"][0])
    if any(point["dollars"] for point in plan["by_devices"]):
        note = "The best layout of each number of devices that was looked at, at the middle of its prices."
        yield "Cost against deadline", note, deadline_svg(plan)


def timeline_note(layout: Plan) -> str:
    """Say what a step is made of, the largest part first."""
    parts = sorted(layout["step_parts_s"].items(), key=lambda part: -part[1])
    shares = [f"{name} {seconds / layout['step_s']:.0%}" for name, seconds in parts if seconds > 0]
    return f"{layout['name']}, {_step(layout)} a step: {', '.join(shares)}."


def facts(plan: Plan) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield small tables of what is known beside the layouts."""
    if plan["failures"] is not None:
        yield "Failures", _failures(plan["failures"])
    if plan["storage"] is not None:
        yield "Storage and network", _storage(plan["storage"])


def money(dollars: list[float] | tuple[float, float] | None) -> str:
    return format_dollars(None if dollars is None else (dollars[0], dollars[1]))


def _layout_row(layout: Plan) -> Row:
    return (
        layout["name"],
        str(layout["devices"]),
        _step(layout),
        format_seconds(layout["seconds"]),
        format_count(layout["tokens_s"]),
        f"{format_bytes(layout['memory_bytes'])} ({layout['memory_bytes'] / layout['limit_bytes']:.0%})",
        money(layout["dollars"]),
        "unknown" if layout["kwh"] is None else f"{format_count(layout['kwh'])} kWh",
    )


def _failures(failures: Plan) -> list[tuple[str, str]]:
    return [
        ("time between failures, of all devices", format_seconds(failures["mtbf_s"])),
        ("failures to expect", f"{failures['expected_failures']:.1f}"),
        ("best interval between checkpoints", format_seconds(failures["interval_s"])),
        ("useful share of the time", f"{failures['goodput']:.2%}"),
        ("the same for an elastic run", f"{failures['elastic_goodput']:.2%}"),
    ]


def _storage(storage: Plan) -> list[tuple[str, str]]:
    return [
        ("a checkpoint", format_bytes(storage["checkpoint_bytes"])),
        ("checkpoints that stay", format_bytes(storage["kept_bytes"])),
        ("time to write one", format_seconds(storage["write_s"])),
        ("time to load one", format_seconds(storage["load_s"])),
        ("corpus, text and tokens", format_bytes(storage["corpus_bytes"])),
        ("sent by a device in a step", format_bytes(storage["network_bytes_per_step"])),
    ]


def _step(layout: Plan) -> str:
    return f"{layout['step_s']:.3g} s"
