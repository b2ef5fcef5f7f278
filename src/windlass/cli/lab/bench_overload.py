"""`windlass bench overload`: the service under ten times the load that it can serve."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.lab.bench.overload import TIMES, bench_overload
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput

MINUTES = 2.0
MIN_GOODPUT, MAX_FIRST, MAX_REJECT_MS, MAX_GROWTH = 0.95, 3.0, 5.0, 0.02
EPILOG = f"""\
The real service, with keys, in front of a small model of random weights: first one request at a time, then
as many as it can serve, then {TIMES:g} times that rate at random times. Exit code 1 if goodput falls below
{MIN_GOODPUT:.0%} of its best, if admitted requests wait more than {MAX_FIRST:g} times as long for their first
token as a single request, if a rejection takes more than {MAX_REJECT_MS:g} ms (p99), or if memory grows by
more than {MAX_GROWTH:.0%}.

examples:
  windlass bench overload
  windlass bench overload --minutes 0.5 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"minutes of overload (default: {MINUTES:g})",
        metavar="N",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0.1 <= args.minutes <= 600:
        raise BadInput(f"--minutes {args.minutes:g}: must be from 0.1 to 600")
    line = ProgressLine(quiet=args.json)
    result = bench_overload(args.minutes, home_of(args), line)
    line.close()
    found = result["figures"]
    if args.json:
        print_json(result)
    else:
        print_table([(name, f"{value:.4g}") for name, value in found.items()], ("figure", "value"))
    kept = (
        found["goodput_vs_peak"] >= MIN_GOODPUT
        and found["ttft_p99_vs_unloaded"] <= MAX_FIRST
        and found["reject_p99_ms"] <= MAX_REJECT_MS
        and found["memory_growth"] <= MAX_GROWTH
    )
    return 0 if kept and not found["failed"] else 1
