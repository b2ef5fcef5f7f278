"""Training with a pipeline that does not drain between batches (parallel/async_pipeline.py).

Between boundaries each stage updates its own weights as soon as a batch has come back to it, and nothing
waits for all stages:

    clipping         by the norm of the stage's own gradient, to its share of the limit; the global norm would
                     need a stop, but the whole stays within the limit
    tied matrix      both ends apply the sum of their gradients some micro-batches later (tied_embedding.py)
    step report      loss, time and stop requests of a step are all-reduced while the next one is computed

Boundaries are steps that all processes know in advance: those at which the loop evaluates, saves, replans or
ends, and every DRAIN_EVERY steps, at which stop requests and new settings take effect. There the pipeline
drains, the last update is done synchronously, and only weights and moments are left. Boundaries depend on the
run alone, not on requests: draining changes the bits that follow, and a run that was stopped must resume as
if it had not been. `step_number` counts the completely known steps; up to one more is computed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.async_pipeline import AsyncPipeline
from windlass.parallel.param_shard import ParamShard
from windlass.spec.errors import BadInput
from windlass.spec.layout import Partition
from windlass.spec.run import Run
from windlass.spec.settings import pipeline_refusal
from windlass.train.async_pipeline.tied_embedding import tied_gradient
from windlass.train.optimize import rate_of, set_rate
from windlass.train.replan import REPLAN_AT
from windlass.train.runtime_settings import newest_request
from windlass.train.step_sync import StepResult, halves, joined
from windlass.train.trainer import Trainer

Batch = tuple[Tensor, Tensor]

DRAIN_EVERY = 16
"""Maximum number of steps between drains. With p stages and m micro-batches the pipeline then idles for p
- 1 turns of 16 m, which is less than 2% if m is at least 4 p; and a request takes effect within 16 steps."""


def next_boundary(run: Run, step: int) -> int:
    """Return the first step after `step` at which the pipeline drains."""
    periods = (run.evaluate_every, run.checkpoint_every, DRAIN_EVERY)
    marks = [(step // every + 1) * every for every in periods]
    if run.time_s is not None:
        marks += [mark for mark in REPLAN_AT if mark > step]
    return min(*marks, run.steps)


class AsyncTrainer(Trainer):
    """A trainer whose stages do not wait for each other between boundaries."""

    saves_in_background = False

    def _assemble(self, cut: Partition, *, before: Trainer | None = None, init_weights: bool = True) -> None:
        reason = pipeline_refusal(self.run, self.sync)
        if reason is not None:
            raise BadInput(reason, hint="use compress = 'bfloat16', or schedule = '1f1b'")
        super()._assemble(cut, before=before, init_weights=init_weights)
        pipeline = self.strategy.pipeline
        assert isinstance(pipeline, AsyncPipeline)
        self._pipeline = pipeline
        self._tp = self.grid.group("tp")
        self._micro_batches = self.run.batch_sequences // self.run.layout.replicas
        self._micro_batches //= self.run.micro_batch_sequences
        self._tied = tied_gradient(self.strategy.params.holdings, self.grid, self.run, self._micro_batches)
        self._pending: deque[_PendingReport] = deque()
        self._read: dict[int, list[Batch]] = {}
        self._digests: dict[int, int] = {}
        self._boundary, self._stop_requested = 0, False
        self._late_norm = 0.0

    def train_step(self, *, stop: bool = False, drain: bool = False) -> StepResult:
        """Return the next completely known step; between boundaries, compute one step ahead."""
        assert not drain, "an asynchronous pipeline cannot join another generation"
        self._stop_requested = self._stop_requested or stop
        if not self._pending:
            self._boundary = next_boundary(self.run, self.step_number)
        while len(self._pending) < 2 and self._computed < self._boundary:
            self._pending.append(self._compute())
        return self._next_result()

    @property
    def _computed(self) -> int:
        return self.step_number + len(self._pending)

    def _compute(self) -> _PendingReport:
        """Compute one step and start the all-reduce of its report."""
        begin, step = time.perf_counter(), self._computed
        rate, self._late_norm = rate_of(self.run, step), 0.0
        set_rate(self.optimizer, rate)
        loss = self.strategy.async_step(step, self._boundary, self._batch, self._num_targets, self._between)
        drained = step + 1 == self._boundary or self.run.layout.staleness == 0
        square = self._update_together(step) if drained else self._update_apart(step)
        self.strategy.params.clear()
        self.replicas.after_update(step + 1, self.train_s + time.perf_counter() - begin)
        self._pipeline.updated()
        self._read.pop(step, None)
        seconds = time.perf_counter() - begin
        self.ledger.spend("compute", seconds)
        request = newest_request(self.folder) if self.grid.world_group.rank == 0 else 0
        layout = self.run.layout
        numbers = [
            float(loss) / layout.tp,
            square,
            float(self._stop_requested),
            seconds / layout.world,
            float(request),
        ]
        numbers += halves(self._digests.pop(step, 0))
        return _PendingReport(torch.tensor(numbers, dtype=torch.float64), rate)

    def _update_together(self, step: int) -> float:
        """Update like a synchronous pipeline; return this process's part of the squared norm."""
        self.weights.collect(0)
        self.weights.reduce(step)
        norm = self.weights.clip(self.run.job.train.clip or math.inf)
        self.optimizer.step()
        return norm**2 / self.run.layout.world

    def _update_apart(self, step: int) -> float:
        """Update this stage alone; return this process's part of the squared norm."""
        held, layout = self.strategy.params, self.run.layout
        held.reduce_grads(tied=False)
        self.replicas.after_backward(step)
        if self._tied is not None:
            self._tied.send()
        norm = clip_apart(held.holdings, self._limit_of(held.holdings), self._tp)
        self.optimizer.step()
        # Each end reports half of the tied matrix's gradient; it is the one that was applied in this step.
        return (norm**2 + self._late_norm**2 / 2) / (layout.tp * layout.dp)

    def _between(self, done: int) -> None:
        """Update only the tied matrix, by the gradient of the previous batch, when its turn comes."""
        if self._tied is None or done != self._tied.turn or not self._tied.under_way:
            return
        holdings = self.strategy.params.holdings
        kept = [h.tensor.grad for h in holdings]
        for holding in holdings:
            holding.tensor.grad = None
        tied = [self._tied.take()]
        self._late_norm = clip_apart(tied, self._limit_of(tied), self._tp)
        self.optimizer.step()
        torch.clear_autocast_cache()
        for holding, gradient in zip(holdings, kept, strict=True):
            holding.tensor.grad = gradient

    def _limit_of(self, holdings: Sequence[ParamShard]) -> float:
        weights = sum(math.prod(h.shape) for h in holdings if h.tensor.grad is not None)
        return limit_of_part(self.run.job.train.clip or math.inf, weights / self.run.network.parameters)

    def _next_result(self) -> StepResult:
        """Wait for the report of the oldest computed step and return its result."""
        report = self._pending.popleft()
        loss, square, stops, seconds, request, high, low = report.wait()
        run = self.run
        self.step_number += 1
        self.samples += run.batch_sequences
        self.ledger.commit(self.step_number, self.samples, joined(high, low))
        self.train_s += seconds
        agreed = self.step_number == self._boundary
        stop = agreed and stops > 0
        replicas = run.layout.dp if self.sync.local else 1
        return StepResult(
            loss / replicas, math.sqrt(square), report.rate, seconds, agreed, stop=stop, request=int(request)
        )

    def _batch(self, micro: int) -> Batch:
        """Return a micro-batch by its number; only the first and the last stage call this."""
        step, place = divmod(micro, self._micro_batches)
        if step not in self._read:
            samples = self.samples + (step - self.step_number) * self.run.batch_sequences
            self.feed.digest = 0
            self._read[step] = self.feed.batches(samples)
            if self._reads:
                self._digests[step] = self.feed.digest
        return self._read[step][place]


class _PendingReport:
    """The report of a step, being all-reduced."""

    def __init__(self, known: Tensor, rate: float) -> None:
        self.rate, self._known = rate, known
        self._work = dist.all_reduce(known, async_op=True)

    def wait(self) -> list[float]:
        assert self._work is not None
        self._work.wait()
        numbers: list[float] = self._known.tolist()
        return numbers


def limit_of_part(limit: float, share: float) -> float:
    """Return the norm limit of a part that has this share of all weights.

    Squares of norms add up, so squares of limits are divided: the whole stays within its limit.
    """
    return limit * math.sqrt(share)


@torch.no_grad()
def clip_apart(holdings: Sequence[ParamShard], limit: float, group: dist.ProcessGroup | None) -> float:
    """Clip the gradients of one stage to a norm of at most `limit`; return their norm before.

    A tensor-parallel `group` clips all its gradients by one factor.
    """
    filled = [(h, h.tensor.grad) for h in holdings if h.tensor.grad is not None]
    if not filled:
        return 0.0
    parts = 1 if group is None else group.size()
    gradients = [gradient for _, gradient in filled]
    whole = [h.box.shape == h.shape for h, _ in filled]
    squares = [
        norm.square() / (parts if everywhere else 1)
        for norm, everywhere in zip(torch._foreach_norm(gradients), whole, strict=True)
    ]
    total = torch.stack(squares).sum()
    if group is not None:
        dist.all_reduce(total, group=group)
    norm = total.sqrt()
    torch._foreach_mul_(gradients, (limit / (norm + 1e-6)).clamp(max=1.0))
    return float(norm)
