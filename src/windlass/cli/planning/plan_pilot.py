"""`windlass plan pilot`: make small runs of a job, and say from them how the job will end."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import print_json, print_table
from windlass.runs.follower import Follower
from windlass.runs.planning.pilot import SHARE, ask_pilots
from windlass.runs.progress_line import ProgressLine
from windlass.spec.job import Job
from windlass.spec.protocol.entrypoint import INTERRUPTED
from windlass.spec.read import job_from
from windlass.spec.units import format_count

DESCRIPTION = """\
Make a handful of small runs of a job on this machine, fit the law of loss to how they end, and say what
validation loss to expect of the job, which model is best for its compute, and what more compute would buy.
"""
EPILOG = """\
Pilots are narrower and shorter than the job, and cost a share of its compute. Ctrl-C is safe: the same
command goes on where it stopped, and pilots that are finished are not made again. Without JOB.toml the job is
a small one on Python's own library, of some minutes; with --check the job itself is made, too, and the loss
that was expected is put beside the one that came.

examples:
  windlass plan pilot job.toml
  windlass plan pilot job.toml --pilot-share 0.05 --json
  windlass plan pilot --check --json         prove it on this machine; figures.loss_error is the error
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
    parser.add_argument("--check", action="store_true", help="make the job, too, and compare")
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
    return tell_pilots(job, args, check=args.check)


def tell_pilots(job: Job, args: argparse.Namespace, *, check: bool = False) -> int:
    """Make the pilots of a job and print what they tell."""
    line = ProgressLine(quiet=args.json)
    listener = _Listener(line)
    told = ask_pilots(job, home_of(args), line, listener, share=args.pilot_share, check=check)
    line.close()
    if told is None:
        line.say("stopped; the same command goes on from here")
        return INTERRUPTED
    if args.json:
        print_json(told)
    else:
        _print(told)
    return 0


class _Listener(Follower):
    """Follows one run after the other."""

    def _on_pilot(self, event: dict[str, Any]) -> None:
        self._line.say(
            f"pilot {event['number']} of {event['of']}: width {event['width']},"
            f" {format_count(event['tokens'])} tokens"
        )

    def _on_check(self, event: dict[str, Any]) -> None:
        self._line.say("the job itself:")


def _print(told: dict[str, Any]) -> None:
    figures = told["figures"]
    pilots = [
        (
            *map(format_count, (p["weights"], p["width"], p["tokens"])),
            f"{p['loss']:.3f}",
            f"{p['by_law']:.3f}",
        )
        for p in told["pilots"]
    ]
    print_table(pilots, ("weights", "width", "tokens", "loss", "by the law"))
    print(
        f"\nthe job, {figures['times_pilot_compute']:.3g} times the compute of all pilots together:"
        f" validation loss {_range(figures)}"
    )
    if "measured_loss" in figures:
        print(f"it came to {figures['measured_loss']:.3f}: {figures['loss_error']:.1%} off")
    print()
    choices = [
        (f"{c['times']:g}x", format_count(c["weights"]), c["width"], format_count(c["tokens"]), _range(c))
        for c in told["choices"]
    ]
    print_table(choices, ("compute", "best weights", "width", "tokens", "loss"))


def _range(numbers: dict[str, Any]) -> str:
    return f"{numbers['loss']:.3f} ({numbers['loss_low']:.3f} to {numbers['loss_high']:.3f})"
