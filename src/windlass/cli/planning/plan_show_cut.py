"""`windlass plan show-cut`: draw how a layout partitions the model."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.planning.partition_picture import draw_cut
from windlass.cli.terminal import print_json
from windlass.cli.training.workers import laid_out
from windlass.runs.progress_line import ProgressLine
from windlass.runs.show_partition import describe_partition
from windlass.runs.training import plan_job
from windlass.spec.units import parse_bytes

EPILOG = """\
The corpus is built if it does not exist yet, because the plan depends on its size.

examples:
  windlass plan show-cut job.toml --layout pp=2,tp=2
  windlass plan show-cut job.toml --layout pp=2 --speeds 1,0.5     one device at half the speed
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser)
    parser.add_argument("--workers", type=int, metavar="N", help="plan for N processes")
    parser.add_argument(
        "--layout", metavar="AXIS=N,...", help="the parallel layout, e.g. dp=2 or pp=2,schedule=gpipe"
    )
    parser.add_argument(
        "--speeds", type=_speeds, default=(), metavar="A,B,...", help="speeds of the devices along pp"
    )
    parser.add_argument(
        "--memories",
        type=_memories,
        default=(),
        metavar="A,B,...",
        help="memory of the devices along pp, e.g. 8GiB,4GiB",
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print the partition as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    line = ProgressLine(quiet=args.json)
    home = home_of(args)
    planned = plan_job(laid_out(job_of(args), args.layout, args.workers, nodes=1), home, line)
    line.close()
    found = describe_partition(planned, home, speeds=args.speeds, memories=args.memories)
    if args.json:
        print_json(found)
    else:
        draw_cut(planned, found)
    return 0


def _speeds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers like 1,0.5") from None


def _memories(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_bytes(size) for size in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
