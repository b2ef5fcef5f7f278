"""`windlass plan verify`: run layouts on this machine, and compare predictions with measurements."""

from __future__ import annotations

import argparse
import time

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.lab.planner.plan_verify import Verified, as_json, default_job, figures, verify
from windlass.lab.planner.trials import trials_for
from windlass.plan.local.profile import PROFILE, Profile, find_profile, save_profile
from windlass.runs.planning.probe import probe
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput
from windlass.spec.read import read_job
from windlass.spec.units import format_bytes, format_count, format_seconds

LAYOUTS, STEPS = 14, 14
EPILOG = """\
Predictions come from this machine's profile (windlass probe) and from constants of the code, one of which
(the copies held by sharded processes) was chosen with two of these layouts known; nothing is fitted when this
command runs. Without a profile, the machine is measured first. Seconds are those of the fastest quarter of
the steps; memory is the highest peak of any process (VmHWM). `busy` shows how loaded the machine was,
measured by a short matrix product before and after each layout; it does not change the figures.

examples:
  windlass plan verify                    fourteen layouts of three models; five minutes on two cores
  windlass plan verify job.toml           the layouts of a job's own model
  windlass plan verify --layouts 4 --steps 6
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("job", nargs="?", metavar="JOB.toml", help="the job whose model and corpus to use")
    parser.add_argument(
        "--layouts",
        type=int,
        default=LAYOUTS,
        metavar="N",
        help=f"maximum number of layouts (default: {LAYOUTS})",
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"steps of each (default: {STEPS})"
    )
    parser.add_argument("--json", action="store_true", help="print figures and layouts as JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.layouts < 1:
        raise BadInput(f"--layouts {args.layouts}: must be at least 1")
    line, home = ProgressLine(quiet=args.json), home_of(args)
    job = default_job() if args.job is None else read_job(args.job, [])
    profile = find_profile(home) or _probed(args, line)
    trials = trials_for(profile.cores, job_model=args.job is not None)[: args.layouts]

    def tell(one: Verified) -> None:
        line.say(f"{one.name}: time {one.time_error:+.1%}, memory {one.memory_error:+.1%}")

    found = verify(profile, job, trials, home, line, steps=args.steps, tell=tell)
    line.close()
    if args.json:
        age_s = round(time.time() - profile.made_at)
        print_json({**as_json(found), "profile": str(home / PROFILE), "profile_age_s": age_s})
    else:
        _print(found)
    return 0


def _probed(args: argparse.Namespace, line: ProgressLine) -> Profile:
    line.say("this machine has no current profile: measuring it first")
    found = probe(home_of(args), line)
    save_profile(found, home_of(args))
    return found


def _print(found: list[Verified]) -> None:
    head = (
        "layout",
        "weights",
        "processes",
        "micro",
        "predicted",
        "measured",
        "",
        "memory",
        "measured",
        "",
        "busy",
    )
    print_table([_row(one) for one in found], head)
    summary = figures(found)
    print(
        f"mean error over {summary['layouts']} layouts: time {summary['time_mape']:.1%},"
        f" memory {summary['memory_mape']:.1%}; predicted from this machine's profile, nothing fitted"
    )


def _row(one: Verified) -> tuple[str, ...]:
    return (
        one.name,
        format_count(one.parameters),
        f"{one.processes} x {one.threads}",
        str(one.micro_batch),
        _seconds(one.predicted_s),
        _seconds(one.measured_s),
        f"{one.time_error:+.1%}",
        format_bytes(one.predicted_bytes),
        format_bytes(one.measured_bytes),
        f"{one.memory_error:+.1%}",
        f"{one.busy:.2f}",
    )


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else format_seconds(seconds)
