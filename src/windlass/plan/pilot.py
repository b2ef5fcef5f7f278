"""Pilot runs that predict the loss of a large run.

Input: a planned run. Output: pilots, and after they have run, the expected loss of that run, the best model
for its compute, and what more compute would buy.

A learning rate that falls until the last planned step makes the losses on the way useless: only the end of
each pilot lies on the law (Hoffmann et al. 2022, arXiv:2203.15556, section 3.1). So every pilot is a whole
run with its own warm-up and fall, and only its last validation loss counts. Its batch is that of the run:
the same tokens in batches of another size end some percent away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from windlass.plan.loss import useful_tokens
from windlass.plan.loss_fit import LossEstimate, LossFit, LossPoint, Prior, fit_law
from windlass.plan.search import WIDTHS, build_shape, choose_learning_rate
from windlass.spec.errors import BadInput
from windlass.spec.job import Checkpoint, Elastic, Job, ModelSpec
from windlass.spec.layout import Layout
from windlass.spec.run import Run
from windlass.spec.shape import DecoderShape, Network
from windlass.spec.sync import Sync

LADDER = (
    (1.0, 0.40), (1.0, 0.19),
    (0.5, 0.21), (0.5, 0.10),
    (0.25, 0.07), (0.25, 0.03),
)  # fmt: skip
"""Of each pilot: its width beside that of the run, and its share of the pilots' compute. Narrow pilots see
more tokens for the same compute, and so reach nearer to the tokens of the run."""
ENOUGH_STEPS = 500
"""Shorter runs lie up to 8% off the law, and all widths lose about the same (docs/planner.md)."""
MIN_STEPS = 100
"""With fewer, a model is about as good as counting words."""
BUDGETS = (1.0, 3.0, 10.0)
FARTHEST = 16.0
"""How much larger than the largest pilot a model may be to be recommended."""


@dataclass(frozen=True)
class Pilot:
    """One small run."""

    model: ModelSpec
    shape: Network
    steps: int
    batch_sequences: int
    learning_rate: float
    warmup_steps: int

    @property
    def tokens(self) -> int:
        return self.steps * self.batch_sequences * self.shape.context

    @property
    def flops(self) -> float:
        return self.tokens * self.shape.training_flops_per_token()


@dataclass(frozen=True)
class PilotChoice:
    """The best model for some compute, and the loss to expect of it."""

    times: float
    """Compute, as a multiple of the run's."""
    shape: Network
    tokens: float
    estimate: LossEstimate


@dataclass(frozen=True)
class PilotForecast:
    """The prediction for a run from its pilots."""

    estimate: LossEstimate
    fit: LossFit
    by_law: tuple[float, ...]
    """The loss of each pilot by the law."""
    choices: tuple[PilotChoice, ...]


def design(run: Run, share: float) -> list[Pilot]:
    """Return pilots that together cost at most about `share` of the run's compute."""
    budget = share * run_flops(run)
    pilots = [_pilot(run, width, part * budget) for width, part in LADDER]
    shortest = min(pilots, key=lambda pilot: pilot.steps)
    if shortest.steps < MIN_STEPS:
        raise BadInput(
            f"with {share:.0%} of the run's compute the shortest pilot has {shortest.steps} steps,"
            f" and fewer than {MIN_STEPS} tell nothing",
            hint="give a larger --pilot-share; a run so short is its own best pilot",
        )
    return pilots


def run_flops(run: Run) -> float:
    return run.steps * run.tokens_per_step * run.network.training_flops_per_token()


def pilot_job(job: Job, pilot: Pilot, number: int) -> Job:
    """Return the job of a pilot: that of the run, but small, alone, and silent."""
    train = job.train.model_copy(
        update={
            "steps": pilot.steps, "tokens": None, "time": None,
            "batch_sequences": pilot.batch_sequences, "micro_batch_sequences": None,
            "learning_rate": pilot.learning_rate, "warmup_steps": pilot.warmup_steps,
            "evaluate_every": pilot.steps, "checkpoint_every": None, "sample_prompts": (),
        }
    )  # fmt: skip
    return job.model_copy(
        update={
            "name": f"{job.name[:48]}-pilot-{number}", "model": pilot.model, "train": train,
            "layout": Layout(), "sync": Sync(), "checkpoint": Checkpoint(), "elastic": Elastic(),
        }
    )  # fmt: skip


def fixed_job(run: Run) -> Job:
    """Return a job that can only become this run, whatever the machine is like when it is planned."""
    train = run.job.train.model_copy(
        update={
            "steps": run.steps, "tokens": None, "time": None,
            "batch_sequences": run.batch_sequences, "learning_rate": run.learning_rate,
            "warmup_steps": run.warmup_steps, "scaling": "constant",
        }
    )  # fmt: skip
    model = run.job.model.model_copy(update=_narrowed(run.network, 1.0))
    return run.job.model_copy(update={"name": f"{run.job.name[:48]}-checked", "model": model, "train": train})


def answer(run: Run, corpus_tokens: int, pilots: Sequence[Pilot], losses: Sequence[float]) -> PilotForecast:
    """Fit the law to finished pilots, and predict."""
    points = [
        LossPoint(p.shape.matrix_parameters, useful_tokens(p.tokens, corpus_tokens), loss)
        for p, loss in zip(pilots, losses, strict=True)
    ]
    fit = fit_law(points, Prior.of_vocabulary(run.network.vocabulary))
    tokens = useful_tokens(run.steps * run.tokens_per_step, corpus_tokens)
    choices = tuple(
        _best(run, corpus_tokens, fit, times, max(p.weights for p in points)) for times in BUDGETS
    )
    by_law = tuple(fit.law.loss(p.weights, p.tokens) for p in points)
    return PilotForecast(fit.predict(run.network.matrix_parameters, tokens), fit, by_law, choices)


def _best(run: Run, corpus_tokens: int, fit: LossFit, times: float, largest: float) -> PilotChoice:
    """Try every size of the dial; the compute that it leaves for tokens is known exactly."""
    open_job = run.job.model_copy(update={"model": _open(run)})
    shapes = [build_shape(open_job, run.network.vocabulary, width) for width in WIDTHS]
    near = [shape for shape in (*shapes, run.network) if shape.matrix_parameters <= FARTHEST * largest]

    def tokens(shape: Network) -> float:
        return times * run_flops(run) / shape.training_flops_per_token()

    def loss(shape: Network) -> float:
        return fit.law.loss(shape.matrix_parameters, useful_tokens(tokens(shape), corpus_tokens))

    best = min(near, key=loss)
    estimate = fit.predict(best.matrix_parameters, useful_tokens(tokens(best), corpus_tokens))
    return PilotChoice(times, best, tokens(best), estimate)


def _open(run: Run) -> ModelSpec:
    """The model of the run with its sizes left open."""
    return run.job.model.model_copy(
        update={
            **dict.fromkeys(
                ("parameters", "start_from", "layers", "width", "heads", "kv_heads", "ffn_width")
            ),
            "context": run.network.context,
        }
    )


def _pilot(run: Run, width_share: float, flops: float) -> Pilot:
    """The batch is that of the run, unless a pilot would have too few steps to be on the law: then its tokens
    are dealt out in smaller ones."""
    model = run.job.model.model_copy(update=_narrowed(run.network, width_share))
    shape = build_shape(
        run.job.model_copy(update={"model": model, "layout": Layout()}),
        run.network.vocabulary,
        model.width or 1,
        model.layers,
    )
    tokens = flops / shape.training_flops_per_token()
    batch = max(1, min(run.batch_sequences, int(tokens / (ENOUGH_STEPS * shape.context))))
    steps = round(tokens / (batch * shape.context))
    rate = run.learning_rate * choose_learning_rate(shape.width) / choose_learning_rate(run.network.width)
    warmup = round(run.warmup_steps / run.steps * steps)
    return Pilot(model, shape, steps, batch, float(f"{rate:.3g}"), warmup)


def _narrowed(shape: Network, share: float) -> dict[str, Any]:
    """Return the sizes of a like model of another width: heads keep theirs as long as there is one."""
    heads = max(1, round(share * shape.heads))
    width = max(1, round(share * shape.width / (2 * heads))) * 2 * heads
    sizes = {
        "parameters": None,
        "context": shape.context,
        "layers": max(1, round(share * shape.layers)),
        "width": width,
        "heads": heads,
        "ffn_width": max(8, round(width * shape.ffn_width / shape.width / 8) * 8),
    }
    if isinstance(shape, DecoderShape):
        fewer = max(1, round(share * shape.kv_heads))
        sizes["kv_heads"] = max(k for k in range(1, fewer + 1) if heads % k == 0)
    return sizes
