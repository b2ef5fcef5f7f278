"""`windlass bench server`: parameter servers, each mode compared with a single process."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home
from windlass.cli.terminal import print_json, print_table
from windlass.lab.bench.parameter_servers import MODES, RATE, STEPS, bench_served
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each run (default: {STEPS})")
    parser.add_argument(
        "--rate", type=float, default=RATE, help=f"learning rate of the network (default: {RATE:g})"
    )
    parser.add_argument(
        "--modes",
        metavar="A,B,...",
        help=f"some of {', '.join(MODES)} (default: all, and also word2vec and an HMM)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.steps < 2:
        raise BadInput(f"--steps {args.steps}: must be at least 2")
    if not 0 < args.rate < 1:
        raise BadInput(f"--rate {args.rate:g}: must be above 0 and below 1")
    names = ["local", *args.modes.split(",")] if args.modes else list(MODES)
    unknown = [name for name in names if name not in MODES]
    if unknown:
        raise BadInput(f"--modes: no mode '{unknown[0]}'", hint=f"known: {', '.join(MODES)}")
    line, modes = ProgressLine(quiet=args.json), {name: MODES[name] for name in names}
    result = bench_served(args.steps, line, line.say, modes, rate=args.rate, older=not args.modes)
    line.close()
    if args.json:
        print_json(result)
    else:
        print_table([(k, f"{v:.4g}") for k, v in result["figures"].items()], ("figure", "value"))
    return 0
