"""`windlass plan`: say what a job needs before it runs."""

from __future__ import annotations

import argparse

from windlass.cli.home import add_home, home_of
from windlass.cli.job_argument import add_job, job_of
from windlass.cli.terminal import ProgressLine, print_json, print_table
from windlass.operate.runs import plan_job
from windlass.spec.units import format_bytes, format_count, format_seconds

EPILOG = """\
The corpus is built if it is not there yet, because the plan depends on its size.

example:
  windlass plan job.toml
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    add_job(parser)
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print the whole plan as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    line = ProgressLine(quiet=args.json)
    planned = plan_job(job_of(args), home_of(args), line)
    line.close()
    if args.json:
        print_json(planned.model_dump(mode="json"))
        return 0
    shape, predicted = planned.shape, planned.predicted
    rows = [
        ("model", f"{shape.family}, {format_count(shape.parameters)} weights"),
        (
            "sizes",
            f"{shape.layers} layers, width {shape.width}, {shape.heads} heads, context {shape.context}",
        ),
        ("steps", f"{planned.steps} of {planned.batch_sequences} sequences"),
        ("at once", f"{planned.micro_batch_sequences} sequences"),
        ("tokens", format_count(planned.steps * planned.tokens_per_step)),
        ("learning rate", f"{planned.learning_rate:.3g} after {planned.warmup_steps} steps of warm-up"),
        ("compiled", "yes" if planned.compile else "no"),
        ("memory", format_bytes(predicted.memory_bytes)),
        ("speed", f"{format_count(round(predicted.tokens_per_s))} tokens/s"),
        ("time", format_seconds(predicted.seconds)),
        ("loss", f"about {predicted.loss:.2f}"),
    ]
    print_table(rows, ("what", "planned"))
    for reason in predicted.reasons:
        print(f"- {reason}")
    return 0
