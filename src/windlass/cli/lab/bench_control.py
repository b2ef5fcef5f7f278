"""`windlass bench control`: decision time and submit throughput of a control plane."""

from __future__ import annotations

import argparse

from windlass.cli.terminal import print_json, print_table
from windlass.lab.proofs.control.control_bench import bench_control
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput

EPILOG = """\
decision_*     the scheduling decision for the whole queue, per step; cpu: CPU time
step_*         a whole step: observe, diff, decide, write, act
jobs_per_s     from the first step until all jobs are done; the jobs themselves take no time
submit_*       a submit over HTTP while the control process reconciles

examples:
  windlass bench control
  windlass bench control --jobs 5000 --nodes 1000 --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--jobs", type=int, default=1000, help="jobs in the queue (default: 1000)")
    parser.add_argument("--nodes", type=int, default=100, help="nodes of 8 cores (default: 100)")
    parser.add_argument("--submits", type=int, default=200, help="submits over HTTP (default: 200)")
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
