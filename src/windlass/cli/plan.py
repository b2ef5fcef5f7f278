"""`windlass plan`: say what a job needs before it runs, and draw how its model is cut."""

from __future__ import annotations

import argparse

from windlass.cli.cut_picture import draw_cut
from windlass.cli.effective import effective_rows
from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import ProgressLine, print_json, print_table
from windlass.cli.workers import laid_out
from windlass.operate.cut import describe_cut
from windlass.operate.jobs import effective_values
from windlass.operate.runs import plan_job
from windlass.spec.errors import AskedWrongly
from windlass.spec.run import Run
from windlass.spec.units import format_bytes, format_count, format_seconds, parse_bytes

SHOW_CUT = "show-cut"
EPILOG = """\
The corpus is built if it is not there yet, because the plan depends on its size.

examples:
  windlass plan job.toml
  windlass plan job.toml --layout dp=2 --set train.scaling=linear
  windlass plan show-cut job.toml --layout pp=2,tp=2
  windlass plan show-cut job.toml --layout pp=2 --speeds 1,0.5     one device at half the speed
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser)
    parser.add_argument(
        "view", nargs="?", metavar=SHOW_CUT, help="draw which process gets which part of the model"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="plan for so many processes")
    parser.add_argument(
        "--layout", metavar="AXIS=N,...", help="how they divide the work, e.g. dp=2 or pp=2,schedule=gpipe"
    )
    parser.add_argument(
        "--speeds", type=_speeds, default=(), metavar="A,B,...", help="speeds of the devices along pp"
    )
    parser.add_argument(
        "--memories", type=_memories, default=(), metavar="A,B,...", help="their memories, e.g. 8GiB,4GiB"
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print the whole plan, or the cut, as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    shows_cut = _takes_view(args)
    line = ProgressLine(quiet=args.json)
    home = home_of(args)
    job = laid_out(job_of(args), args.layout, args.workers, nodes=1)
    planned = plan_job(job, home, line)
    line.close()
    if shows_cut:
        found = describe_cut(planned, home, speeds=args.speeds, memories=args.memories)
        if args.json:
            print_json(found)
        else:
            draw_cut(planned, found)
    elif args.json:
        print_json(planned.model_dump(mode="json"))
    else:
        _print_plan(planned)
    return 0


def _print_plan(planned: Run) -> None:
    shape, predicted = planned.shape, planned.predicted
    rows = [
        ("model", f"{shape.family}, {format_count(shape.parameters)} weights"),
        (
            "sizes",
            f"{shape.layers} layers, width {shape.width}, {shape.heads} heads, context {shape.context}",
        ),
        *effective_rows(effective_values(planned, planned.job.sync)),
        ("tokens", format_count(planned.steps * planned.tokens_per_step)),
        ("compiled", "yes" if planned.compile else "no"),
        ("memory", format_bytes(predicted.memory_bytes)),
        ("speed", f"{format_count(round(predicted.tokens_per_s))} tokens/s"),
        ("time", format_seconds(predicted.seconds)),
        ("loss", f"about {predicted.loss:.2f}"),
    ]
    print_table(rows, ("what", "planned"))
    for reason in predicted.reasons:
        print(f"- {reason}")


def _takes_view(args: argparse.Namespace) -> bool:
    """Whether the cut is asked for; "show-cut" may stand before the job or after it."""
    if args.job == SHOW_CUT and args.view is not None:
        args.job, args.view = args.view, SHOW_CUT
    if args.job == SHOW_CUT:
        raise AskedWrongly("show-cut: of which job?", hint="windlass plan show-cut JOB.toml")
    if args.view not in (None, SHOW_CUT):
        raise AskedWrongly(f"plan: '{args.view}' is not known", hint=f"did you mean '{SHOW_CUT}'?")
    return args.view is not None


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
