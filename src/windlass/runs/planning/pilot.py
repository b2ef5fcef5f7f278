"""Trains the pilots of a job on this machine, and predicts the loss of the job from them.

    pilots/NAME.json              the target run, as it was planned when the pilots were designed
    runs/NAME-pilot-1/1 ...       each pilot, a run like any other

A finished pilot is not repeated, and an interrupted one is resumed from its checkpoint, so repeating the
command gives the same result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.plan.loss_fit import LossEstimate
from windlass.plan.pilot import Pilot, PilotForecast, answer, design, fixed_job, pilot_job, run_flops
from windlass.runs.training import RunFolder, corpus_facts, newest_of, plan_job, prepare, train
from windlass.spec.errors import BadInput
from windlass.spec.job import STATISTICS, Job
from windlass.spec.protocol.progress import Report
from windlass.spec.run import LINEAGE, Run
from windlass.store.store_dir import StoreDir

SHARE = 0.24
"""Share of the run's compute for all pilots together; the largest takes a tenth of the run's."""

Tell = Callable[[dict[str, Any]], None]


def run_pilots(
    job: Job, home: Path, report: Report, tell: Tell, *, share: float = SHARE, check: bool = False
) -> dict[str, Any] | None:
    """Return the forecast of the pilots, or None when they were interrupted.

    With `check` the run itself is trained, too, and its loss compared with the forecast.
    """
    _check(job, share)
    run = _target(job, home, report)
    pilots = design(run, share)
    jobs = [pilot_job(job, pilot, number) for number, pilot in enumerate(pilots, 1)]
    losses: list[float] = []
    for number, (pilot, small) in enumerate(zip(pilots, jobs, strict=True), 1):
        tell({"event": "pilot", "number": number, "of": len(pilots), **_facts(pilot)})
        loss = _loss_after_training(small, home, report, tell)
        if loss is None:
            return None
        losses.append(loss)
    forecast = _forecast(
        run, pilots, losses, answer(run, corpus_facts(Path(run.corpus)).train_tokens, pilots, losses)
    )
    return _checked(forecast, run, home, report, tell) if check else forecast


def _check(job: Job, share: float) -> None:
    if not 0 < share <= 1:
        raise BadInput(f"--pilot-share must be in (0, 1], got {share:g}")
    if job.model.family in STATISTICS:
        raise BadInput(
            f"pilots need a model trained by gradients; family '{job.model.family}' is counted",
            hint="leave out --pilot; `windlass train` takes little longer than a pilot would",
        )
    if job.model.start_from is not None:
        raise BadInput(
            "[model] start_from: pilots start from random weights, so they cannot forecast this run",
            hint="leave out --pilot",
        )


def _target(job: Job, home: Path, report: Report) -> Run:
    """Return the target run. It is planned once: a plan for a given time depends on the machine's load."""
    place, name = StoreDir(home / "pilots"), f"{job.name}.json"
    if place.exists(name):
        known = Run.model_validate_json(place.read(name))
        if known.job == job:
            return known
    run = plan_job(job, home, report)
    place.write(name, run.model_dump_json(indent=1).encode())
    return run


def _loss_after_training(job: Job, home: Path, report: Report, tell: Tell) -> float | None:
    """Return the final validation loss of a job's run, which is started or resumed if necessary."""
    folder = newest_of(job, home) or prepare(job, home, report)
    if not folder.finished and not train(folder, tell):
        return None
    return _loss_of(folder)


def _loss_of(folder: RunFolder) -> float:
    lineage = json.loads((folder.result / LINEAGE).read_text())
    return float(lineage["metrics"]["loss"])


def _checked(
    forecast: dict[str, Any], run: Run, home: Path, report: Report, tell: Tell
) -> dict[str, Any] | None:
    tell({"event": "check"})
    measured = _loss_after_training(fixed_job(run), home, report, tell)
    if measured is None:
        return None
    expected = forecast["figures"]["loss"]
    within = forecast["figures"]["loss_low"] <= measured <= forecast["figures"]["loss_high"]
    figures = {"measured_loss": measured, "loss_error": abs(expected / measured - 1), "within": within}
    return {**forecast, "figures": {**forecast["figures"], **figures}}


def _forecast(run: Run, pilots: list[Pilot], losses: list[float], found: PilotForecast) -> dict[str, Any]:
    spent, whole = sum(pilot.flops for pilot in pilots), run_flops(run)
    law = found.fit.law
    return {
        "job": run.job.name,
        "figures": {
            **_estimate(found.estimate),
            "times_pilot_compute": whole / spent,
            "times_largest_pilot": whole / max(pilot.flops for pilot in pilots),
        },
        "run": {
            "weights": run.shape.parameters,
            "tokens": run.steps * run.tokens_per_step,
            "flops": whole,
        },
        "choices": [
            {
                "times": choice.times,
                "weights": choice.shape.parameters,
                "layers": choice.shape.layers,
                "width": choice.shape.width,
                "tokens": round(choice.tokens),
                **_estimate(choice.estimate),
            }
            for choice in found.choices
        ],
        "law": {
            "floor": law.floor, "size_scale": law.size_scale, "size_power": law.size_power,
            "data_scale": law.data_scale, "data_power": law.data_power, "sharpness": law.sharpness,
            "noise": found.fit.noise,
        },
        "pilots": [
            {**_facts(pilot), "loss": loss, "by_law": by_law}
            for pilot, loss, by_law in zip(pilots, losses, found.by_law, strict=True)
        ],
    }  # fmt: skip


def _facts(pilot: Pilot) -> dict[str, Any]:
    return {
        "weights": pilot.shape.parameters,
        "width": pilot.shape.width,
        "layers": pilot.shape.layers,
        "tokens": pilot.tokens,
        "steps": pilot.steps,
        "batch_sequences": pilot.batch_sequences,
        "flops": pilot.flops,
    }


def _estimate(estimate: LossEstimate) -> dict[str, float]:
    return {"loss": estimate.loss, "loss_low": estimate.low, "loss_high": estimate.high}
