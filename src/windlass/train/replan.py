"""Corrects a run's length by what its steps really take, when it has a time budget.

The planner's prediction is a guess about this machine; the first steps are a measurement of it.
"""

from __future__ import annotations

from windlass.spec.run import Run

LOOK_AT = frozenset((8, 24, 64, 160, 400, 1000, 2500))
TOLERANCE = 0.1
OVERHEAD_SHARE = 0.08
"""Share of the time budget that evaluations, samples and checkpoints take."""


def replanned(run: Run, step: int, train_s: float) -> Run:
    """Return a run of the right length, or the same run when it is right or not yet known better."""
    if run.time_s is None or step not in LOOK_AT or step >= run.steps:
        return run
    left_s = run.time_s * (1 - OVERHEAD_SHARE) - train_s
    steps = max(step + 1, step + int(left_s / (train_s / step)))
    if abs(steps - run.steps) <= TOLERANCE * run.steps:
        return run
    shrink = steps / run.steps
    return run.model_copy(
        update={
            "steps": steps,
            "evaluate_every": max(20, round(run.evaluate_every * shrink)),
            "checkpoint_every": max(20, round(run.checkpoint_every * shrink)),
            "warmup_steps": run.warmup_steps
            if run.warmup_steps <= step
            else min(run.warmup_steps, steps // 10),
        }
    )
