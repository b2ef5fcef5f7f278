"""The hyperparameters that training really uses: batch, micro-batch, learning rate, warm-up and steps.

A job states them for one replica. How they follow the number of replicas is [train] scaling:

    constant   nothing changes: replicas divide the same batch, so the result is the same, only sooner
    linear     batch and learning rate grow with the replicas, steps and warm-up shrink, so that the tokens
               stay the same (Goyal et al. 2017, arXiv:1706.02677, section 2.1)
    sqrt       as linear, but the learning rate grows by the root: the noise of a gradient falls so, and
               Adam divides by that noise (Malladi et al. 2022, arXiv:2205.10287)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from windlass.spec.errors import BadInput
from windlass.spec.job import Train
from windlass.spec.layout import Layout, schedule_misfits
from windlass.spec.run import Run

FULL_PIPELINE = 4
"""Micro-batches for each process of a pipeline at which its idle time hardly matters (Huang et al. 2018,
arXiv:1811.06965, section 2.3)."""


@dataclass(frozen=True)
class Effective:
    """What one step is, and how many there are."""

    batch_sequences: int
    """Of all replicas together."""
    micro_batch_sequences: int
    """Computed at once by one replica."""
    learning_rate: float
    warmup_steps: int
    steps: int


def effective(train: Train, base: Effective, layout: Layout) -> Effective:
    """Return the numbers for this layout, given those that one replica would have."""
    replicas = Fraction(layout.replicas)
    if train.scaling == "constant":
        scaled = base
    else:
        scaled = replace(
            base,
            batch_sequences=base.batch_sequences * layout.replicas,
            learning_rate=base.learning_rate * rate_factor(train, replicas),
            warmup_steps=math.ceil(base.warmup_steps / replicas),
            steps=math.ceil(base.steps / replicas),
        )
    micro = choose_micro(train, layout, scaled.batch_sequences, base.micro_batch_sequences)
    return replace(scaled, micro_batch_sequences=micro)


def adapted(run: Run, layout: Layout, *, step: int) -> Run:
    """Return the run as it continues from `step` under another layout.

    What is left is counted in samples: under a larger batch they are fewer steps. A warm-up that is over
    stays as it was; one that is not continues at its pace in samples. The rate is a function of the share of
    steps that are done, so with another batch its decay continues from a somewhat different point.
    """
    train, ratio = run.job.train, Fraction(layout.replicas, run.layout.replicas)
    batch = run.batch_sequences * (1 if train.scaling == "constant" else ratio)
    if int(batch) != batch:
        raise BadInput(
            f"[train] scaling = '{train.scaling}': a batch of {run.batch_sequences} sequences of"
            f" {run.layout.replicas} replicas cannot become one of {layout.replicas}",
            hint="use a number of replicas that divides it",
        )
    pace = Fraction(batch, run.batch_sequences)
    return run.model_copy(
        update={
            "layout": layout,
            "batch_sequences": int(batch),
            "micro_batch_sequences": choose_micro(train, layout, int(batch), run.micro_batch_sequences),
            "learning_rate": run.learning_rate * rate_factor(train, ratio),
            "warmup_steps": _later(run.warmup_steps, step, pace),
            "steps": _later(run.steps, step, pace),
            "evaluate_every": max(1, round(run.evaluate_every / pace)),
            "checkpoint_every": max(1, round(run.checkpoint_every / pace)),
        }
    )


def rate_factor(train: Train, ratio: Fraction) -> float:
    """Return by how much the learning rate grows when there are `ratio` times as many replicas."""
    return {"constant": 1.0, "linear": float(ratio), "sqrt": math.sqrt(ratio)}[train.scaling]


def micro_batches_of(layout: Layout, batch_sequences: int, micro_batch_sequences: int) -> int:
    """Return in how many parts the smallest replica's share of the batch is computed."""
    return max(1, _share(layout, batch_sequences) // micro_batch_sequences)


def choose_micro(train: Train, layout: Layout, batch_sequences: int, max_micro: int) -> int:
    """Return how many sequences of a replica to compute at once.

    Fewer, larger micro-batches are faster, up to `max_micro`; a pipeline must be kept full, and its schedule
    may forbid some numbers.
    """
    share = _share(layout, batch_sequences)
    if layout.micro_batches is not None:
        return max(1, share // layout.micro_batches)
    wanted = train.micro_batch_sequences
    if wanted is not None and share % wanted == 0:
        return wanted
    sizes = [size for size in range(1, min(max_micro, share) + 1) if share % size == 0]
    if layout.pp == 1:
        return max(sizes)
    running = [s for s in sizes if next(schedule_misfits(layout, share // s), None) is None] or sizes
    full = [size for size in running if share // size >= FULL_PIPELINE * layout.pp]
    return max(full, default=min(running))


def _later(mark: int, step: int, pace: Fraction) -> int:
    """Return the step at which as many samples are used as before at `mark`, if steps are `pace` as large."""
    return mark if mark <= step else step + math.ceil((mark - step) / pace)


def _share(layout: Layout, batch_sequences: int) -> int:
    """Return the sequences of the smallest equal part that replicas get of a batch."""
    return max(1, batch_sequences // (sum(layout.shares) if layout.shares else layout.replicas))
