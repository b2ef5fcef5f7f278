"""`windlass simulate`: simulate a day of a large fleet with the real scheduler and autoscaler."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.cli.terminal import print_json, print_table
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput
from windlass.spec.units import format_seconds

EPILOG = """\
Nodes, jobs, failures and service load are simulated; the reconcile loop, the scheduler and the autoscaler are
the real ones. The same seed gives the same report, except for the measured times.

scenarios:
  calm      70% load, and nothing fails
  day       a working day: demand exceeds capacity at noon; nodes, racks and starts fail
  bad       ten times the failures, and 4% of the racks at the same time
  hostile   a day with a tenant that requests twice the fleet; compared with the day without it

examples:
  windlass simulate                                     10,000 machines, a day
  windlass simulate --nodes 200 --hours 6 --scenario bad --seed 7
  windlass simulate --nodes 1000 --plot day.html --json > day.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--nodes", type=int, default=10_000, help="number of nodes (default: 10000)")
    parser.add_argument("--hours", type=float, default=24.0, help="simulated hours (default: 24)")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: 1)")
    parser.add_argument("--scenario", default="day", help="calm, day, bad or hostile (default: day)")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="plot utilisation, queue, failures and shares: FILE.html or .svg",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from windlass.lab.simulate.plot import page_html, picture_svg
    from windlass.lab.simulate.report import simulate
    from windlass.lab.simulate.scenario import scenario_of

    scenario = scenario_of(args.scenario, args.nodes, args.hours, args.seed)
    draw = _drawing(args.plot, page_html, picture_svg)
    line = ProgressLine()
    try:
        report = simulate(scenario, line)
    finally:
        line.close()
    if draw is not None:
        args.plot.write_text(draw(report), encoding="utf-8")
    if args.json:
        print_json(report)
    else:
        _print(report)
    return 0


def _drawing(path: Path | None, page: Any, svg: Any) -> Any:
    """Check the path of the plot before the simulation, not after it."""
    if path is None:
        return None
    drawings = {".html": page, ".svg": svg}
    if path.suffix not in drawings:
        raise BadInput(f"--plot {path}: must end in .html or .svg")
    if not path.parent.is_dir():
        raise BadInput(f"--plot {path}: there is no directory '{path.parent}'")
    return drawings[path.suffix]


def _print(report: dict[str, Any]) -> None:
    scenario, jobs, took = report["scenario"], report["jobs"], report["measured"]
    print(
        f"{scenario['nodes']:,} machines, {scenario['hours']:g} h, scenario {scenario['name']},"
        f" seed {scenario['seed']}"
    )
    print(
        f"took {format_seconds(took['wall_s'])} ({took['cpu_s']:g} s of CPU): {took['events']:,} events,"
        f" {took['steps']:,} steps of the control plane"
    )
    print(f"a decision takes {_ms(took['decide_ms'])} of CPU, a step {_ms(took['step_ms'])}")
    print()
    print(
        f"jobs: {jobs['submitted']:,} submitted, {jobs['done']:,} done, {jobs['running']:,} running,"
        f" {jobs['waiting']:,} waiting; {jobs['lost']} lost, {jobs['run_twice']} run twice"
    )
    found = report["convergence"]
    print(f"failures: {found['failures']:,} machines, {found['jobs_hit']:,} jobs hit", end="")
    healed = f"; recovered after {_s(found['p50'])} (p50), {_s(found['p99'])} (p99)"
    print(healed if found["number"] else "")
    fair, services = report["fairness"], report["services"]
    print(f"preemptions: {report['preemptions']:,}")
    if fair["jain"] is not None:
        print(f"fairness: Jain {fair['jain']:.3f} among tenants that wanted more (worst {fair['worst']:.3f})")
    print(
        f"services: {services['number']}, at most {services['max_replicas']:,} replicas;"
        f" {services['answered']:.2%} of the load was served"
    )
    _print_tables(report)


def _print_tables(report: dict[str, Any]) -> None:
    use = report["use"]
    print()
    kinds = list(use["gpus"])
    print_table(
        [(name, *(f"{use[name][kind]:.2%}" for kind in kinds)) for name in ("gpus", "cores")], ("", *kinds)
    )
    print()
    waits = [
        (name, f"{each['number']:,}", _s(each["p50"]), _s(each["p99"]))
        for name, each in report["waits"].items()
    ]
    print_table(waits, ("wait in the queue", "jobs", "p50", "p99"))
    print()
    rows = [
        (
            name,
            f"{each['weight']:g}",
            f"{each['jobs']:,}",
            f"{each['share'] or 0:.1%}",
            _s(each["wait"]["p50"]),
            _s(each["wait"]["p99"]),
            _times(each["slowdown"]["p50"]),
            _times(each["slowdown"]["p99"]),
        )
        for name, each in report["tenants"].items()
    ]
    print_table(
        rows, ("tenant", "weight", "jobs", "share", "wait p50", "wait p99", "slowdown p50", "slowdown p99")
    )
    if "harm" in report:
        _print_harm(report["harm"])


def _print_harm(harm: dict[str, Any]) -> None:
    print()
    rows = [
        (
            name,
            *(f"{_s(each[key][0])} -> {_s(each[key][1])}" for key in ("wait_p50", "wait_p99")),
            " -> ".join(_times(value) for value in each["slowdown_p50"]),
            " -> ".join(f"{value or 0:.1%}" for value in each["share"]),
        )
        for name, each in harm.items()
    ]
    print_table(rows, ("without -> with the hostile tenant", "wait p50", "wait p99", "slowdown p50", "share"))


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)


def _ms(spread: dict[str, Any]) -> str:
    return f"{spread['p50']:.1f} ms (p50), {spread['p99']:.1f} ms (p99)"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
