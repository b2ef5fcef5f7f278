"""`windlass plan sweep`: measure a corpus, and plan every option for every document length, on Beam."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import print_json
from windlass.plan.sweep.report import as_text
from windlass.plan.sweep.stages import SweepOptions
from windlass.runs.planning.sweep import SweepRequest, sweep_corpus
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import AskedWrongly
from windlass.spec.read import parse, read_toml
from windlass.store.beam import RUNNERS, flag_of

EPILOG = """\
Documents are grouped by their length in tokens; every group is planned as a separate run, for every
combination of the options. Written to --out: result.parquet, no_solution.parquet (with the reason),
buckets.parquet, report.txt and report.html.

an options file (all keys are optional):
  contexts = [2048, 8192]
  models = ["1B", "7B"]
  precisions = ["bfloat16", "float8"]
  fleets = ["8xH100-SXM5", "64xA100-SXM4-80GB"]

examples:
  windlass plan sweep job.toml --fleet 8xH100-SXM5
  windlass plan sweep job.toml --options options.toml --processes 4 --out s3://bucket/sweep
  windlass plan sweep job.toml --options options.toml --runner flink \\
      --runner-option flink_master=host:8081 --out s3://bucket/sweep
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser)
    parser.add_argument("--fleet", metavar="FLEET", help="fleet file, or a fleet like 64xH100-SXM5")
    parser.add_argument("--options", type=Path, metavar="FILE.toml", help="what else to combine (see below)")
    parser.add_argument("--runner", choices=RUNNERS, default="direct", help="Beam's runner (default: direct)")
    parser.add_argument(
        "--runner-option", action="append", default=[], metavar="KEY=VALUE", help="passed on to the runner"
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="processes of the direct runner (default: 1)"
    )
    parser.add_argument("--out", metavar="DIR", help="directory or store URL (default: HOME/sweeps/JOB)")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print all rows as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.processes < 1:
        raise AskedWrongly(f"--processes {args.processes}: must be at least 1")
    home, job = home_of(args), job_of(args)
    options = (
        parse(SweepOptions, read_toml(args.options), str(args.options)) if args.options else SweepOptions()
    )
    out = args.out or str(home / "sweeps" / job.name)
    if "://" not in out:
        out = str(Path(out).absolute())
    flags = tuple(flag_of(text) for text in args.runner_option)
    line = ProgressLine(quiet=args.json)
    request = SweepRequest(job, options, args.fleet, out, args.runner, args.processes, flags)
    rows = sweep_corpus(request, home, line)
    line.close()
    if args.json:
        print_json({"out": out, **rows})
    else:
        print(as_text(rows), end="")
        print(f"- written to {out}")
    return 0
