"""`windlass plan`: plan a job before it runs: layout, time, memory and cost."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.planning.plan_fleet import add_fleet, plan_for_fleet, refuse_without_fleet
from windlass.cli.planning.plan_pilot import add_share, print_pilots
from windlass.cli.terminal import print_json, print_table
from windlass.cli.training.hyperparameter_table import effective_rows
from windlass.cli.training.workers import laid_out
from windlass.runs.progress_line import ProgressLine
from windlass.runs.run_status import effective_values
from windlass.runs.training import plan_job
from windlass.spec.errors import AskedWrongly, did_you_mean, nearest
from windlass.spec.run import Run
from windlass.spec.shape import HmmShape, MlpShape, NgramShape, Shape
from windlass.spec.units import format_bytes, format_count, format_seconds

WORDS = {
    "show-cut": "draw how a layout partitions the model",
    "pilot": "predict the final loss of a job from small pilot runs",
    "verify": "run layouts on this machine, and compare predicted with measured time and memory",
    "published": "predict published measurements, and print the errors by source",
    "sweep": "measure a corpus, and plan every option for every document length, on Apache Beam",
    "serving": "find the replicas and the layout that serve a given load within latency targets",
}
"""Each in its own module, plan_WORD.py; any other first word is a job file."""

EPILOG = f"""\
Without --fleet the plan is for this machine, and the corpus is built if it does not exist yet, because the
plan depends on its size.

other plans (`windlass plan WORD --help`):
{chr(10).join(f"  {word:<12} {purpose}" for word, purpose in WORDS.items())}

examples:
  windlass plan job.toml
  windlass plan job.toml --layout dp=2 --set train.scaling=linear
  windlass plan job.toml --pilot               pilot runs first: predict the loss
  windlass plan show-cut job.toml --layout pp=2,tp=2
  windlass plan job.toml --fleet 64xH100-SXM5 --more 64
  windlass plan job.toml --fleet fleet.toml --deadline 3d --budget 5000 --html plan.html
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser)
    parser.add_argument("word", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, metavar="N", help="plan for N processes")
    parser.add_argument(
        "--layout",
        metavar="AXIS=N,...",
        help="the parallel layout, e.g. dp=2 or pp=2,schedule=gpipe; with --fleet the axes that the search"
        " keeps fixed, e.g. tp=8,recompute=full",
    )
    parser.add_argument(
        "--pilot", action="store_true", help="make pilot runs first, and predict the loss from them"
    )
    add_share(parser)
    add_fleet(parser)
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    _check_words(args)
    if args.fleet is not None:
        return plan_for_fleet(args)
    refuse_without_fleet(args)
    if args.pilot:
        return print_pilots(job_of(args), args)
    line = ProgressLine(quiet=args.json)
    planned = plan_job(laid_out(job_of(args), args.layout, args.workers, nodes=1), home_of(args), line)
    line.close()
    if args.json:
        print_json(planned.model_dump(mode="json"))
    else:
        _print_plan(planned)
    return 0


def _check_words(args: argparse.Namespace) -> None:
    """Distinguish a misspelt subcommand from a missing job file."""
    meant = nearest(args.job, list(WORDS))
    if meant is not None and not Path(args.job).exists():
        raise AskedWrongly(f"plan: there is no job file '{args.job}'", hint=f"did you mean '{meant}'?")
    if args.word is not None:
        raise AskedWrongly(
            f"plan: unknown subcommand '{args.word}'", hint=did_you_mean(args.word, list(WORDS))
        )


def _sizes(shape: Shape) -> str:
    match shape:
        case NgramShape():
            return f"up to {shape.order} tokens in a row, {shape.vocabulary} different ones"
        case HmmShape():
            return f"{shape.states} states, {shape.vocabulary} tokens, sequences of {shape.context}"
        case MlpShape():
            return (
                f"{shape.layers} layers, width {shape.width}, window {shape.window}, context {shape.context}"
            )
    return f"{shape.layers} layers, width {shape.width}, {shape.heads} heads, context {shape.context}"


def _learning(planned: Run) -> list[tuple[str, str]]:
    """The rows of models that are trained with gradients."""
    return [
        ("tokens", format_count(planned.steps * planned.tokens_per_step)),
        ("compiled", "yes" if planned.compile else "no"),
    ]


def _print_plan(planned: Run) -> None:
    shape, predicted = planned.shape, planned.predicted
    weights = f"{format_count(shape.parameters)} weights"
    rows = [
        ("model", f"{shape.family}, {weights}" if shape.parameters else shape.family),
        ("sizes", _sizes(shape)),
        *effective_rows(effective_values(planned, planned.job.sync)),
        *([] if isinstance(shape, NgramShape | HmmShape) else _learning(planned)),
        ("memory", format_bytes(predicted.memory_bytes)),
        ("speed", f"{format_count(round(predicted.tokens_per_s))} tokens/s"),
        ("time", format_seconds(predicted.seconds)),
        ("loss", "unknown" if predicted.loss is None else f"about {predicted.loss:.2f}"),
    ]
    print_table(rows, ("what", "planned"))
    for reason in predicted.reasons:
        print(f"- {reason}")
