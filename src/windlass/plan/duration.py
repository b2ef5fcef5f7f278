"""How fast a model trains on this machine.

From its profile, if there is one (`local.step`), corrected by earlier runs (`local.calibrate`).
Without one, a step is its matrix products at some share of the machine's peak. The share grows with the
width, because narrow products leave the arithmetic units waiting and the work around them (norms, rotary
angles, optimizer) weighs more; the curve was fitted to the CPU runs in docs/benchmarks.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.plan.local.calibrate import Experience
from windlass.plan.local.machine import MachineFacts
from windlass.plan.local.step import StepShape, local_step
from windlass.spec.job import Job
from windlass.spec.shape import Network

BEST_SHARE = 0.80
HALF_WIDTH = 110.0
STEP_OVERHEAD_S = 0.004


@dataclass(frozen=True)
class StepTimeModel:
    """Predicts the training speed of a job's models on this machine."""

    job: Job
    machine: MachineFacts
    experience: Experience | None = None

    def tokens_per_s(self, shape: Network, batch: int, micro_batch: int) -> float:
        """Return the speed with steps of `batch` sequences, `micro_batch` of them computed at once."""
        return batch * shape.context / self.step_s(shape, batch, micro_batch)

    def step_s(self, shape: Network, batch: int, micro_batch: int) -> float:
        """Return the seconds of a step."""
        known = self.measured
        if known is None:
            return step_seconds(shape, batch * shape.context, self.machine.peak_flops)
        threads = self.job.machine.threads or self.machine.cores
        step = StepShape(shape, self.job.layout, batch, min(batch, micro_batch), threads)
        return local_step(known.profile, step).seconds * known.correction.factor

    @property
    def measured(self) -> Experience | None:
        """The measurements of this machine, if they apply to the job: float32 on its cores."""
        machine = self.job.machine
        return self.experience if machine.precision == "float32" and machine.device != "cuda" else None


def peak_share(width: int) -> float:
    """Share of the machine's matrix-product peak that training reaches at this width."""
    return BEST_SHARE * width / (width + HALF_WIDTH)


def step_seconds(shape: Network, batch_tokens: int, peak_flops: float) -> float:
    """Time of one optimizer step, by the peak alone."""
    flops = shape.training_flops_per_token() * batch_tokens
    return flops / (peak_flops * peak_share(shape.width)) + STEP_OVERHEAD_S
