"""`windlass plan pilot`: predict the final loss of a job from small pilot runs."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import print_json, print_table
from windlass.runs.follower import Follower
from windlass.runs.planning.pilot import SHARE, run_pilots
from windlass.runs.progress_line import ProgressLine
from windlass.spec.job import Job
from windlass.spec.protocol.entrypoint import INTERRUPTED
from windlass.spec.read import job_from
from windlass.spec.units import format_count

DESCRIPTION = """\
Make a handful of small runs of a job on this machine, fit a scaling law to their final losses, and predict
the validation loss of the job, the best model size for its compute, and the gain from more compute.
"""
EPILOG = """\
Pilots are narrower and shorter than the job, and cost a share of its compute. Ctrl-C is safe: the same
command resumes, and finished pilots are not repeated. Without JOB.toml the job is a small one on Python's
standard library, of some minutes; with --check the job itself is trained, too, and its loss is compared with
the prediction.

examples:
  windlass plan pilot job.toml
  windlass plan pilot job.toml --pilot-share 0.05 --json
  windlass plan pilot --check --json         check the prediction; figures.loss_error is the error
"""
PROOF = """\
name = "pilot-proof"
corpus.tokenizer.vocabulary = 1024
model = {layers = 3, width = 64, heads = 2, context = 128}
train = {steps = 12000, batch_sequences = 4}
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add_job(parser, default="a small proof")
    add_share(parser)
    parser.add_argument("--check", action="store_true", help="train the job, too, and compare")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def add_share(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pilot-share",
        type=float,
        default=SHARE,
        metavar="SHARE",
        help=f"compute of all pilots together, as a share of the job's (default: {SHARE:g})",
    )


def run(args: argparse.Namespace) -> int:
    if args.job is None:
        job = job_from(tomllib.loads(PROOF), args.overrides, "the proof", Path.cwd())
    else:
        job = job_of(args)
    return print_pilots(job, args, check=args.check)


def print_pilots(job: Job, args: argparse.Namespace, *, check: bool = False) -> int:
    """Run the pilots of a job and print the prediction."""
    line = ProgressLine(quiet=args.json)
    listener = _Listener(line)
    result = run_pilots(job, home_of(args), line, listener, share=args.pilot_share, check=check)
    line.close()
    if result is None:
        line.say("stopped; run the same command again to continue")
        return INTERRUPTED
    if args.json:
        print_json(result)
    else:
        _print(result)
    return 0


class _Listener(Follower):
    """Follows the pilot runs one after the other."""

    def _on_pilot(self, event: dict[str, Any]) -> None:
        self._line.say(
            f"pilot {event['number']} of {event['of']}: width {event['width']},"
            f" {format_count(event['tokens'])} tokens"
        )

    def _on_check(self, event: dict[str, Any]) -> None:
        self._line.say("the job itself:")


def _print(result: dict[str, Any]) -> None:
    figures = result["figures"]
    pilots = [
        (
            *map(format_count, (p["weights"], p["width"], p["tokens"])),
            f"{p['loss']:.3f}",
            f"{p['by_law']:.3f}",
        )
        for p in result["pilots"]
    ]
    print_table(pilots, ("weights", "width", "tokens", "loss", "fitted"))
    print(
        f"\nthe job, {figures['times_pilot_compute']:.3g} times the compute of all pilots together:"
        f" validation loss {_range(figures)}"
    )
    if "measured_loss" in figures:
        print(f"measured: {figures['measured_loss']:.3f}, {figures['loss_error']:.1%} off")
    print()
    choices = [
        (f"{c['times']:g}x", format_count(c["weights"]), c["width"], format_count(c["tokens"]), _range(c))
        for c in result["choices"]
    ]
    print_table(choices, ("compute", "best weights", "width", "tokens", "loss"))


def _range(numbers: dict[str, Any]) -> str:
    return f"{numbers['loss']:.3f} ({numbers['loss_low']:.3f} to {numbers['loss_high']:.3f})"
