"""A pipeline that never stops between batches: each stage updates its weights as soon as it can.

Micro-batches run through the stages without a flush. A stage goes forward with later ones while it waits for
the gradients of earlier ones, also across the end of a batch, and so on weights that lack the update of that
batch. Two things keep this sound. Staleness is bounded: the forward pass of a micro-batch misses at most
`staleness` updates. And the backward pass of a micro-batch uses the very weights of its forward pass, of
which copies are kept for as long (weight stashing, PipeDream: Narayanan et al. 2019, arXiv:1806.03377;
updates once a batch as in PipeDream-2BW, arXiv:2006.09503). That few messages are in flight at a time, and
that a stage works on what it has, is AMPNet's idea (Gaunt et al. 2017, arXiv:1705.09786); unlike there, the
order of work is fixed beforehand and not by arrival, so a run can be repeated to the bit.

At boundaries, which all stages know beforehand, the pipeline drains: nothing is in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.device_mesh import Mesh
from windlass.parallel.p2p import BACKWARD, FORWARD, Neighbour
from windlass.parallel.stage import Loss, ModelStage
from windlass.parallel.weight_stash import Stash, Version

Source = Callable[[int], tuple[Tensor, Tensor]]
"""The number of a micro-batch, counted from the run's first, to its inputs and targets."""
Between = Callable[[int], None]
"""Called after each backward pass with the number of micro-batches of the batch that are done."""


@dataclass(frozen=True)
class Window:
    """How far a stage may run ahead. Pure: steps and micro-batches are counted from the run's first."""

    ahead: int
    """Micro-batches that go forward before the one that goes back."""
    staleness: int
    """Updates that a forward pass may miss."""
    micro_batches: int
    """Micro-batches of a batch."""

    def limit(self, step: int, boundary: int) -> int:
        """Return the first micro-batch that may not go forward during a step.

        During step t the weights have t updates; micro-batches of batch t + staleness still may use them.
        """
        return min(step + 1 + self.staleness, boundary) * self.micro_batches

    def until(self, micro: int, boundary: int) -> int:
        """Return the end (exclusive) of the micro-batches that have gone forward when `micro` goes back."""
        return min(micro + 1 + self.ahead, self.limit(micro // self.micro_batches, boundary))

    def leaves(self, step: int, boundary: int) -> bool:
        """Whether micro-batches are in flight when the weights are updated after a step."""
        end = (step + 1) * self.micro_batches
        return self.until(end - 1, boundary) > end


def window_of(stage: int, stages: int, staleness: int, micro_batches: int) -> Window:
    """Return a window of one micro-batch for each later stage, which hides the time of these stages.

    Two per stage are no faster, since the busier of two stages idles for 2% with one, and train worse,
    because more forward passes miss an update.
    """
    return Window(stages - 1 - stage, staleness, micro_batches)


class AsyncPipeline:
    """This process's stage of a pipeline that is not flushed between batches."""

    def __init__(
        self, stage: ModelStage, grid: Mesh, loss: Loss, *, micro_batches: int, sequences: int
    ) -> None:
        layout, at = grid.layout, grid.at["pp"]
        self._stage, self._grid, self._loss = stage, grid, loss
        self._window = window_of(at, layout.pp, layout.staleness, micro_batches)
        length = stage.length // (layout.tp if layout.tp > 1 and layout.sequence else 1)
        self._stream = (sequences, length, stage.model.shape.width)
        group = grid.group("pp")
        self._before = (
            None if stage.piece.embedding else Neighbour(grid, group, at - 1, self._stream, FORWARD)
        )
        self._after = None if stage.piece.head else Neighbour(grid, group, at + 1, self._stream, BACKWARD)
        self._stash = Stash(stage)
        self._in_flight: dict[int, _Flight] = {}
        self._next = 0
        self.max_versions = 0
        """The largest number of weight versions held at a time."""
        self.busy_s, self._spent_s = {stage.piece.stage: 0.0}, 0.0

    def advance(
        self, step: int, boundary: int, source: Source, num_targets: int, between: Between | None = None
    ) -> Tensor:
        """Add up the gradients of batch `step`; go forward with later ones, but none of step `boundary`.

        Return the batch's loss on the last stage, and 0 elsewhere. The caller updates the weights and then
        calls `updated`.
        """
        begin, first = time.perf_counter(), step * self._window.micro_batches
        if not self._in_flight:
            self._next = first
        losses = []
        for micro in range(first, first + self._window.micro_batches):
            while self._next < self._window.until(micro, boundary):
                self._forward(step, boundary, source, num_targets)
            losses.append(self._backward(micro))
            if between is not None:
                between(micro + 1 - first)
        if step + 1 == boundary:
            self._drain()
        self._spent_s += time.perf_counter() - begin
        return torch.stack(losses).sum() if self._after is None else torch.zeros((), device=self._grid.device)

    def updated(self) -> None:
        """The weights have changed: later forward passes use the new ones."""
        self._stash.close()

    def step(self, inputs_BT: Tensor, targets_BT: Tensor, num_targets: int) -> Tensor:
        """Add up gradients of one batch with nothing else in flight, as a synchronous pipeline does."""
        micro = self._window.micro_batches
        batches = list(zip(inputs_BT.chunk(micro), targets_BT.chunk(micro), strict=True))
        total = self.advance(0, 1, lambda number: batches[number], num_targets)
        self.updated()
        return total

    def eval_loss(self, inputs_BT: Tensor, targets_BT: Tensor, width: int) -> Tensor:
        """Return the summed loss of a batch without gradients on the last stage; 0 elsewhere."""
        x = inputs_BT
        if self._before is not None:
            x = torch.empty(len(inputs_BT), *self._stream[1:], device=self._grid.device)
            dist.recv(x, self._before.rank, group=self._before.group)
        y = self._stage(x)
        if self._after is None:
            return self._loss(self._stage.model, y, targets_BT)
        dist.send(y.contiguous(), self._after.rank, group=self._after.group)
        return torch.zeros((), device=self._grid.device)

    def take_busy(self) -> dict[int, float]:
        """Return the seconds that the stage has computed since the last call."""
        taken = dict(self.busy_s)
        self.busy_s.update(dict.fromkeys(taken, 0.0))
        return taken

    def take_spent(self) -> float:
        """Return the seconds that batches took since the last call, waiting included."""
        spent, self._spent_s = self._spent_s, 0.0
        return spent

    def _forward(self, step: int, boundary: int, source: Source, num_targets: int) -> None:
        micro, device = self._next, self._grid.device
        if self._before is None:
            x = source(micro)[0].to(device)
        else:
            x = self._before.take(self._window.limit(step, boundary) - micro).requires_grad_()
        version = self._stash.open(lasting=self._window.leaves(step, boundary))
        with self._busy():
            self._stash.mount(version)
            y = self._stage(x)
            if self._after is None:
                y = self._loss(self._stage.model, y, source(micro)[1].to(device)) / num_targets
        self._in_flight[micro] = _Flight(version, x, y)
        self._next += 1
        self.max_versions = max(self.max_versions, len({id(f.version) for f in self._in_flight.values()}))
        if self._after is not None:
            self._after.send(y.detach(), FORWARD)

    def _backward(self, micro: int) -> Tensor:
        """Add a micro-batch's gradients to those of its batch; return its output (last stage: the loss)."""
        flight = self._in_flight.pop(micro)
        slope = None if self._after is None else self._after.take(self._next - micro)
        with self._busy(), self._stash.adding_up(flight.version):
            torch.autograd.backward(flight.y, slope)
        if self._before is not None:
            assert flight.x.grad is not None
            self._before.send(flight.x.grad, BACKWARD)
        return flight.y.detach()

    def _drain(self) -> None:
        for neighbour in (self._before, self._after):
            if neighbour is not None:
                neighbour.drain()

    @contextmanager
    def _busy(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.busy_s[self._stage.piece.stage] += time.perf_counter() - begin


@dataclass(frozen=True)
class _Flight:
    """A micro-batch between its forward and its backward pass."""

    version: Version
    x: Tensor
    y: Tensor
