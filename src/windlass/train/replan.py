"""Adjusts the number of steps of a run with a time budget to the measured duration of a step.

The planner's prediction is an estimate for this machine; the first steps are a measurement.
"""

from __future__ import annotations

from windlass.spec.run import Run

REPLAN_AT = frozenset((8, 24, 64, 160, 400, 1000, 2500))
TOLERANCE = 0.1
OVERHEAD_SHARE = 0.08
"""Share of the time budget that evaluations, samples and checkpoints take."""


def replanned(run: Run, step: int, train_s: float) -> Run:
    """Return a run with the right number of steps, or the same run if no correction is needed now."""
    if run.time_s is None or step not in REPLAN_AT or step >= run.steps:
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
