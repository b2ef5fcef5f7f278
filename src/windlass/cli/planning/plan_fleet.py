"""`windlass plan JOB.toml --fleet F`: layout, time and cost of a job on any machines."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windlass.cli.job_argument import job_of
from windlass.cli.terminal import print_json, print_table
from windlass.plan.cost.fitted_constants import documented
from windlass.plan.cost.money import format_dollars
from windlass.plan.fleet.request import PlanRequest, planned
from windlass.plan.fleet.work import sizes_named
from windlass.plan.report.page import report_html
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import AskedWrongly
from windlass.spec.fleet import fleet_of
from windlass.spec.units import format_bytes, format_count, format_seconds

ONLY_WITH_FLEET = {
    "deadline": None, "budget": None, "objective": None, "more": 0, "search": "exhaustive", "top": 5,
    "html": None, "sizes": None, "price": None, "precision": None, "software": None,
}  # fmt: skip
"""Options that need --fleet, and their defaults."""
MAX_POINTS = 12
QUICKER = {
    "batch": "With idle devices at work",
    "float8": "At some risk to the result",
    "diloco": "At some risk to the result",
}
"""Alternatives printed with the plan; those for after training are in --json and --html."""
NO_SOLUTION = 2
"""The exit code: the user can correct the request."""


def add_fleet(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a fleet",
        "Plans for machines that need not exist, without torch. The corpus need not exist either: the job"
        " gives the tokens ([train] tokens or steps) and the vocabulary ([corpus.tokenizer]). Exit code 2 if"
        " nothing fits or a limit cannot be met, with the smallest change that helps.",
    )
    group.add_argument(
        "--fleet", metavar="F", help="FLEET.toml, or words like 64xH100-SXM5 or 64xH100+32xA100"
    )
    group.add_argument("--deadline", metavar="WHEN", help="finish within 3d, or by a date like 2026-12-24")
    group.add_argument("--budget", metavar="DOLLARS", help="maximum cost, e.g. 5000 or 2.5M")
    group.add_argument(
        "--objective",
        choices=("time", "money", "memory"),
        help="what to minimise (default: time; with --deadline alone money)",
    )
    group.add_argument("--more", type=int, default=0, metavar="N", help="also plan with N more devices")
    group.add_argument(
        "--search", choices=("exhaustive", "greedy"), default="exhaustive", help="(default: exhaustive)"
    )
    group.add_argument("--top", type=int, default=5, metavar="N", help="layouts to show (default: 5)")
    group.add_argument("--html", metavar="FILE", help="write a self-contained HTML report")
    group.add_argument(
        "--sizes",
        metavar="SIZES",
        help="instead of [model]: a TOML file with the sizes of a transformer, or a name like Llama-3.1-70B",
    )
    group.add_argument(
        "--price", type=float, metavar="DOLLARS", help="price of one device-hour, overrides all others"
    )
    group.add_argument(
        "--precision", metavar="A,B", help="precisions to choose from (default: the job's, else 16 bits)"
    )
    group.add_argument(
        "--software",
        metavar="NAME",
        help=f"training software whose speed is assumed: {', '.join(documented())}",
    )


def refuse_without_fleet(args: argparse.Namespace) -> None:
    """Refuse options that would be ignored without --fleet."""
    given = [name for name, default in ONLY_WITH_FLEET.items() if getattr(args, name) != default]
    if given:
        raise AskedWrongly(f"--{given[0]} needs --fleet", hint="for example --fleet 64xH100-SXM5")


def plan_for_fleet(args: argparse.Namespace) -> int:
    request = plan_request_of(args)
    line = ProgressLine(quiet=args.json)
    facts = planned(request, datetime.now(UTC), line)
    line.close()
    if args.html is not None:
        Path(args.html).write_text(report_html(facts), encoding="utf-8")
    if args.json:
        print_json(facts)
    elif facts["layouts"]:
        _print_plan(facts)
    if facts["no_solution"] is None:
        return 0
    _print_no_solution(facts, quiet=args.json)
    return NO_SOLUTION


def plan_request_of(args: argparse.Namespace) -> PlanRequest:
    """Read options and files; the planner checks whether they fit together."""
    if args.workers is not None:
        raise AskedWrongly("--workers cannot be used with --fleet, which defines the number of processes")
    if args.pilot:
        raise AskedWrongly("--pilot makes runs on this machine and cannot be used with --fleet")
    return PlanRequest(
        job=job_of(args),
        fleet=fleet_of(args.fleet, args.price),
        sizes=sizes_named(args.sizes) if args.sizes is not None else None,
        deadline=args.deadline,
        budget=args.budget,
        objective=args.objective,
        precision=args.precision,
        software=args.software,
        layout=args.layout,
        search=args.search,
        top=args.top,
        more=args.more,
    )


def _print_plan(facts: dict[str, Any]) -> None:
    rows = [
        (
            layout["name"],
            layout["devices"],
            format_seconds(layout["step_s"]),
            format_seconds(layout["seconds"]),
            f"{format_count(round(layout['tokens_s']))}",
            f"{format_bytes(layout['memory_bytes'])} of {format_bytes(layout['limit_bytes'])}",
            format_dollars(tuple(layout["dollars"]) if layout["dollars"] is not None else None),
        )
        for layout in facts["layouts"]
    ]
    print_table(rows, ("layout", "devices", "step", "whole run", "tokens/s", "memory", "cost"))
    print()
    for sentence in (*facts["explanation"], *_quicker(facts["ways"])):
        print(f"- {sentence}")
    print()
    _print_points(facts["front"])
    print(f"{facts['counted']} layouts were evaluated in {format_seconds(facts['search_s'])}.")


def _quicker(ways: list[dict[str, Any]]) -> list[str]:
    return [f"{QUICKER[way['way']]}: {way['sentence']}" for way in ways if way["way"] in QUICKER]


def _print_points(points: list[dict[str, Any]]) -> None:
    """Print the Pareto front of time, money and memory."""
    rows = [
        (
            point["devices"],
            format_seconds(point["seconds"]),
            format_dollars(point["dollars"]),
            format_bytes(point["memory_bytes"]),
            point["name"],
        )
        for point in points[:: -(-len(points) // MAX_POINTS)]
    ]
    print(f"No layout beats these in time, money and memory at once ({len(rows)} of {len(points)} shown):")
    print_table(rows, ("devices", "whole run", "cost", "memory", "layout"))


def _print_no_solution(facts: dict[str, Any], *, quiet: bool) -> None:
    """Print the reason to standard error, and the changes that would help to standard output."""
    none = facts["no_solution"]
    print(f"windlass: no solution: {none['sentence']}", file=sys.stderr)
    if quiet:
        return
    helps = [fix["sentence"] for fix in (*none["fixes"], *facts["ways"])]
    print("changes that would help, the smallest first:" if helps else "none of the changes tried would help")
    for sentence in helps:
        print(f"- {sentence}")
