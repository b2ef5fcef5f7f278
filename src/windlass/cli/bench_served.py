"""`windlass bench server`: parameter servers, each mode beside the others."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home
from windlass.cli.terminal import ProgressLine, print_json, print_table
from windlass.operate.bench.served import STEPS, bench_served
from windlass.spec.errors import BadInput


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=STEPS, help=f"updates of each run (default: {STEPS})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.steps < 2:
        raise BadInput(f"--steps {args.steps}: must be at least 2")
    line = ProgressLine(quiet=args.json)
    result = bench_served(args.steps, line, line.say)
    line.close()
    if args.json:
        print_json(result)
    else:
        print_table([(k, f"{v:.4g}") for k, v in result["figures"].items()], ("figure", "value"))
    return 0
