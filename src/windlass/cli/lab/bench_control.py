"""`windlass bench control`: how quickly a control plane decides, and takes jobs in."""

from __future__ import annotations

import argparse

from windlass.cli.terminal import print_json, print_table
from windlass.lab.proofs.control.control_bench import bench_control
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput

EPILOG = """\
decision_*     the pure decision about the whole queue, of each step; cpu: without waiting for a core
step_*         a whole step: survey, compare, decide, write, act
jobs_per_s     from the first step until all jobs are done, jobs that take no time of ours
submit_*       a submit over HTTP to a control process that reconciles meanwhile

examples:
  windlass bench control
  windlass bench control --jobs 5000 --nodes 1000 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--jobs", type=int, default=1000, help="in the queue (default: 1000)")
    parser.add_argument("--nodes", type=int, default=100, help="of 8 cores each (default: 100)")
    parser.add_argument("--submits", type=int, default=200, help="over HTTP (default: 200)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    for option in ("jobs", "nodes", "submits"):
        if getattr(args, option) < 1:
            raise BadInput(f"--{option} {getattr(args, option)}: must be at least 1")
    line = ProgressLine(quiet=args.json)
    result = bench_control(line, jobs=args.jobs, nodes=args.nodes, submits=args.submits)
    line.close()
    if args.json:
        print_json(result)
    else:
        print_table([(k, f"{v:.4g}") for k, v in result["figures"].items()], ("figure", "value"))
    return 0 if not result["figures"]["run_twice"] else 1
