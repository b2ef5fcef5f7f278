"""`windlass bench soak`: one engine under long mixed traffic."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.lab.bench.soak import soak
from windlass.runs.progress_line import ProgressLine

MINUTES = 20.0
EPILOG = """\
Requests of random lengths, greedy and sampled, with grammars, shared prefixes, several tenants, cancellations
and errors. Every answer is compared with that of a fresh engine that gets the request alone, which takes time
in addition to the minutes of traffic. Exit code 1 if an answer is wrong, a block is leaked or memory grew by
more than 2%.

examples:
  windlass bench soak
  windlass bench soak --minutes 2 --json
"""
MAX_GROWTH = 0.02


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"minutes of traffic (default: {MINUTES:g})",
        metavar="N",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    line = ProgressLine(quiet=args.json)
    result = soak(args.minutes, home_of(args), line)
    line.close()
    found = result["figures"]
    if args.json:
        print_json(result)
    else:
        print_table([(name, f"{value:.5g}") for name, value in found.items()], ("figure", "value"))
    lasted = not found["wrong_answers"] and not found["leaked_blocks"]
    return 0 if lasted and found["memory_growth"] <= MAX_GROWTH else 1
