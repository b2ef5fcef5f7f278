"""`windlass chaos`: inject faults into a run, and show that nothing is lost."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import print_json
from windlass.lab.chaos.baseline import ChaosRequest
from windlass.lab.chaos.cleanup import clean
from windlass.lab.chaos.harness import REPORT_FILE, chaos
from windlass.lab.chaos.schedule import KINDS
from windlass.runs.progress_line import ProgressLine
from windlass.runs.run_status import find_run
from windlass.spec.errors import AskedWrongly, BadInput, did_you_mean
from windlass.spec.job import Job
from windlass.spec.units import parse_seconds

EPILOG = (
    """\
First the job is trained without faults (the baseline), for about as long as the experiment; then again with
faults drawn from the seed. An audit counts the samples, and the two runs are compared. Both are runs of
JOB-chaos; the report is in the directory of the second, as chaos.json and chaos.txt. Partition, delay and a
full disk need root.

kinds of faults:
"""
    + "\n".join(f"  {kind:19} {purpose}" for kind, purpose in KINDS.items())
    + """

examples:
  windlass chaos job.toml --minutes 10 --every 20s --deterministic
  windlass chaos job.toml --minutes 2 --kinds kill,freeze,coordinator
  windlass chaos job.toml --reference job-chaos/1      compare with an existing baseline run
  windlass chaos --clean                               clean up after a killed experiment
"""
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser, default="none, with --clean")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="workers (default: 4)")
    parser.add_argument("--spares", type=int, default=0, metavar="N", help="hot spare workers (default: 0)")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of faults (default: 10)")
    parser.add_argument(
        "--every", default="20s", metavar="TIME", help="mean time between faults (default: 20s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the fault schedule (default: 1)")
    parser.add_argument("--kinds", metavar="KIND,...", help="kinds of faults (default: all available)")
    parser.add_argument("--reference", metavar="RUN", help="a baseline run to compare with, NAME/NUMBER")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="train deterministically; final weights must be bit-identical",
    )
    parser.add_argument("--clean", action="store_true", help="clean up after a killed experiment")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home, line = home_of(args), ProgressLine(quiet=args.json)
    if args.clean:
        return _clean(args)
    if args.job is None:
        raise AskedWrongly("chaos needs a job file", hint="`windlass chaos --help` shows what is possible")
    ask = request_of(args)
    report = chaos(ask, home, line, line.say)
    line.close()
    if args.json:
        print_json(report.body)
    else:
        print(report.text, end="")
        print(f"report: {home / 'runs' / report.body['run'] / REPORT_FILE}")
    return 0 if report.good else 1


def request_of(args: argparse.Namespace) -> ChaosRequest:
    """Parse the options, or refuse invalid ones."""
    if args.workers < 2:
        raise BadInput(f"--workers {args.workers}: must be at least 2, so that a worker survives")
    if args.spares < 0:
        raise BadInput(f"--spares {args.spares}: must be at least 0")
    if args.minutes <= 0:
        raise BadInput(f"--minutes {args.minutes:g}: must be more than 0")
    return ChaosRequest(
        job=_job(args),
        workers=args.workers,
        spares=args.spares,
        seconds=args.minutes * 60,
        every_s=_every(args.every),
        seed=args.seed,
        kinds=_kinds(args.kinds),
        reference=find_run(home_of(args), args.reference) if args.reference else None,
    )


def _job(args: argparse.Namespace) -> Job:
    job = job_of(args)
    if args.deterministic:
        job = job.model_copy(update={"elastic": job.elastic.model_copy(update={"deterministic": True})})
    return job


def _every(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise BadInput(f"--every {text}: {error}") from None
    if seconds <= 0:
        raise BadInput(f"--every {text}: must be more than 0")
    return seconds


def _kinds(text: str | None) -> tuple[str, ...]:
    kinds = tuple(word.strip() for word in text.split(",")) if text is not None else tuple(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise BadInput(f"--kinds {text}: no kind '{kind}'", hint=did_you_mean(kind, list(KINDS)))
    return kinds


def _clean(args: argparse.Namespace) -> int:
    removed = clean(home_of(args))
    if args.json:
        print_json({"removed": removed})
    else:
        print("\n".join(f"removed {what}" for what in removed) or "nothing to clean up")
    return 0
