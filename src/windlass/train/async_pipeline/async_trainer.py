"""Training with a pipeline that does not stop between batches (parallel/async_pipeline.py).

Between borders each stage updates its own weights as soon as a batch has come back to it, and nothing waits
for all stages:

    clipping         by the norm of the stage's own gradient, to its share of the limit; there is no norm of
                     the whole without a stop, but the whole stays within the limit
    tied matrix      both ends apply the sum of their gradients some micro-batches later (tied_embedding.py)
    what happened    loss, time and wishes to stop of a step are added up while the next one is computed

Borders are steps that all processes know beforehand: those at which the loop evaluates, saves, corrects its
length or ends, and every so many in between, at which wishes to stop or to change settings are heard. There
the pipeline drains, the last update is done as a synchronous one, and nothing but weights and moments is
left. Borders depend on the run alone, not on wishes: draining changes the bits that come after, and a run
that was stopped must go on as if it had not been. `step_number` counts the steps of which everything is
known; up to one more is computed.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.async_pipeline import AsyncPipeline
from windlass.parallel.param_shard import ParamShard
from windlass.spec.errors import BadInput
from windlass.spec.layout import Partition
from windlass.spec.run import Run
from windlass.spec.sync import Sync
from windlass.train.async_pipeline.tied_embedding import tied_gradient
from windlass.train.optimize import rate_of, set_rate
from windlass.train.replan import LOOK_AT
from windlass.train.settings_file import newest_request
from windlass.train.step_sync import StepResult, halves, joined
from windlass.train.trainer import Trainer

Batch = tuple[Tensor, Tensor]

BORDER_EVERY = 16
"""Steps after which the pipeline drains at the latest. With p stages and m micro-batches it then idles for
p - 1 turns of 16 m, which is less than 2% where m is at least 4 p; and a wish is heard within 16 steps."""


def next_border(run: Run, step: int) -> int:
    """Return the first step after `step` at which the pipeline drains."""
    periods = (run.evaluate_every, run.checkpoint_every, BORDER_EVERY)
    marks = [(step // every + 1) * every for every in periods]
    if run.time_s is not None:
        marks += [mark for mark in LOOK_AT if mark > step]
    return min(*marks, run.steps)


def refusals(run: Run, sync: Sync) -> Iterator[str]:
    """Yield why replicas of an asynchronous pipeline cannot exchange in this way.

    Replicas exchange their gradients of the tied matrix at each end apart, before the ends add up theirs.
    What compression leaves out would then differ between the ends, but a checkpoint has one place for it.
    """
    kept = sync.compress in ("top-k", "powersgd") and not sync.local
    if kept and run.layout.dp > 1 and getattr(run.network, "tied", True):
        yield f"compress = '{sync.compress}' does not go with an asynchronous pipeline that ties its ends"


class AsyncTrainer(Trainer):
    """A trainer whose stages do not wait for each other between borders."""

    saves_beside = False

    def _assemble(self, cut: Partition, *, before: Trainer | None = None, fill: bool = True) -> None:
        reason = next(refusals(self.run, self.sync), None)
        if reason is not None:
            raise BadInput(reason, hint="use compress = 'bfloat16', or schedule = '1f1b'")
        super()._assemble(cut, before=before, fill=fill)
        pipeline = self.strategy.pipeline
        assert isinstance(pipeline, AsyncPipeline)
        self._pipeline = pipeline
        self._tp = self.grid.group("tp")
        self._micro_batches = self.run.batch_sequences // self.run.layout.replicas
        self._micro_batches //= self.run.micro_batch_sequences
        self._tied = tied_gradient(self.strategy.held.holdings, self.grid, self.run, self._micro_batches)
        self._told: deque[_Told] = deque()
        self._read: dict[int, list[Batch]] = {}
        self._digests: dict[int, int] = {}
        self._border, self._wish = 0, False
        self._late_norm = 0.0

    def step(self, *, stop: bool = False, leave: bool = False) -> StepResult:
        """Advance by one step of which everything is known; between borders, compute one further."""
        assert not leave, "an asynchronous pipeline does not change its company"
        self._wish = self._wish or stop
        if not self._told:
            self._border = next_border(self.run, self.step_number)
        while len(self._told) < 2 and self._computed < self._border:
            self._told.append(self._compute())
        return self._hear()

    @property
    def _computed(self) -> int:
        return self.step_number + len(self._told)

    def _compute(self) -> _Told:
        """Compute one step and begin to tell the others of it."""
        begin, step = time.perf_counter(), self._computed
        rate, self._late_norm = rate_of(self.run, step), 0.0
        set_rate(self.optimizer, rate)
        loss = self.strategy.flow(step, self._border, self._batch, self._asked, self._between)
        drained = step + 1 == self._border or self.run.layout.staleness == 0
        square = self._update_together(step) if drained else self._update_apart(step)
        self.strategy.held.clear()
        self.replicas.after_update(step + 1, self.train_s + time.perf_counter() - begin)
        self._pipeline.updated()
        self._read.pop(step, None)
        seconds = time.perf_counter() - begin
        self.ledger.spend("compute", seconds)
        request = newest_request(self.folder) if self.grid.crew.rank == 0 else 0
        layout = self.run.layout
        told = [float(loss) / layout.tp, square, float(self._wish), seconds / layout.world, float(request)]
        told += halves(self._digests.pop(step, 0))
        return _Told(torch.tensor(told, dtype=torch.float64), rate)

    def _update_together(self, step: int) -> float:
        """Update as a synchronous pipeline does; return this process's part of the squared norm."""
        held = self.strategy.held
        held.collect()
        self.replicas.after_backward(step)
        norm = held.clip(self.run.job.train.clip or math.inf)
        self.optimizer.step()
        return norm**2 / self.run.layout.world

    def _update_apart(self, step: int) -> float:
        """Update this stage alone; return this process's part of the squared norm."""
        held, layout = self.strategy.held, self.run.layout
        held.collect(tied=False)
        self.replicas.after_backward(step)
        if self._tied is not None:
            self._tied.send()
        norm = clip_apart(held.holdings, self._limit_of(held.holdings), self._tp)
        self.optimizer.step()
        # Each end tells half of the tied matrix's gradient; it is the one that was applied in this step.
        return (norm**2 + self._late_norm**2 / 2) / (layout.tp * layout.dp)

    def _between(self, done: int) -> None:
        """Update the tied matrix by the gradient of the batch before, and nothing else, when it is time."""
        if self._tied is None or done != self._tied.turn or not self._tied.under_way:
            return
        holdings = self.strategy.held.holdings
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

    def _hear(self) -> StepResult:
        """Hear what all processes know of the oldest step that was computed."""
        told = self._told.popleft()
        loss, square, stops, seconds, request, high, low = told.heard()
        run = self.run
        self.step_number += 1
        self.samples += run.batch_sequences
        self.ledger.commit(self.step_number, self.samples, joined(high, low))
        self.train_s += seconds
        agreed = self.step_number == self._border
        stop = agreed and stops > 0
        replicas = run.layout.dp if self.sync.local else 1
        return StepResult(
            loss / replicas, math.sqrt(square), told.rate, seconds, agreed, stop=stop, request=int(request)
        )

    def _batch(self, micro: int) -> Batch:
        """Return a micro-batch by its number; only the first and the last stage ask."""
        step, place = divmod(micro, self._micro_batches)
        if step not in self._read:
            samples = self.samples + (step - self.step_number) * self.run.batch_sequences
            self.feed.digest = 0
            self._read[step] = self.feed.batches(samples)
            if self._reads:
                self._digests[step] = self.feed.digest
        return self._read[step][place]


class _Told:
    """What a process tells of a step, on its way to all others and their sum on its way back."""

    def __init__(self, known: Tensor, rate: float) -> None:
        self.rate, self._known = rate, known
        self._work = dist.all_reduce(known, async_op=True)

    def heard(self) -> list[float]:
        assert self._work is not None
        self._work.wait()
        heard: list[float] = self._known.tolist()
        return heard


def limit_of_part(limit: float, share: float) -> float:
    """Return the limit of the norm of a part that has this share of all weights.

    Squares of norms add up, so squares of limits are shared out: the whole stays within its limit.
    """
    return limit * math.sqrt(share)


@torch.no_grad()
def clip_apart(holdings: Sequence[ParamShard], most: float, group: dist.ProcessGroup | None) -> float:
    """Shrink the gradients of one stage to a norm of at most `most`; return the norm that they had.

    A group of processes that divide the stage's features shrinks all by one factor.
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
    torch._foreach_mul_(gradients, (most / (norm + 1e-6)).clamp(max=1.0))
    return float(norm)
