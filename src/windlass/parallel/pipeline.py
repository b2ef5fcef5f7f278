"""Runs micro-batches through the pipeline stages in the order of one of torch's schedules.

GPipe: Huang et al. 2018, arXiv:1811.06965. 1F1B and interleaved: Narayanan et al. 2021, arXiv:2104.04473.
Looped: Lamy-Poirier 2022, arXiv:2211.05953. Zero-bubble and its V: Qi et al. 2023, arXiv:2401.10241.
DualPipeV: DeepSeek-AI 2024, arXiv:2412.19437, folded in half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from windlass.parallel.device_mesh import Mesh
from windlass.parallel.stage import Loss, ModelStage
from windlass.spec.layout import Partition

SCHEDULES: dict[str, Any] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "looped": ScheduleLoopedBFS,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}
SPLIT = ("zero-bubble", "zbv", "dualpipe-v")
"""Schedules that split the backward pass: at once for the inputs, later, in idle time, for the weights."""
_TIMED = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


class Pipeline:
    """The stages of this process, and the schedule that all processes of the pipeline follow."""

    def __init__(
        self, stages: Sequence[ModelStage], grid: Mesh, cut: Partition, loss: Loss, micro_batches: int
    ) -> None:
        self._stages, self._grid, self._cut, self._loss = stages, grid, cut, loss
        self._num_targets, self._spent_s = 1, 0.0
        self.busy_s = dict.fromkeys((stage.piece.stage for stage in stages), 0.0)
        """Seconds that each local stage has computed, without waiting for its neighbours."""
        group = grid.group("pp")
        rows = [PipelineStage(s, s.piece.stage, len(cut.pieces), grid.device, group=group) for s in stages]
        for row in rows:
            self._time(row)
        kind = SCHEDULES[grid.layout.schedule]
        what = rows[0] if issubclass(kind, PipelineScheduleSingle) else rows
        self._schedule = kind(what, micro_batches, loss_fn=self._mean_loss, scale_grads=False)

    def step(self, inputs_BT: Tensor, targets_BT: Tensor, num_targets: int) -> Tensor:
        """Add up gradients of a batch; return its loss on the last stage, and 0 elsewhere."""
        self._num_targets = num_targets
        losses: list[Tensor] = []
        first = any(stage.piece.embedding for stage in self._stages)
        last = any(stage.piece.head for stage in self._stages)
        arguments = (inputs_BT,) if first else ()
        begin = time.perf_counter()
        self._schedule.step(
            *arguments, target=targets_BT if last else None, losses=losses, return_outputs=False
        )
        self._spent_s += time.perf_counter() - begin
        return torch.stack(losses).sum() if losses else torch.zeros((), device=self._grid.device)

    def eval_loss(self, inputs_BT: Tensor, targets_BT: Tensor, width: int) -> Tensor:
        """Return the summed loss of a batch without gradients on the last stage; 0 elsewhere."""
        total = torch.zeros((), device=self._grid.device)
        length = self._stages[0].length
        if self._grid.layout.tp > 1 and self._grid.layout.sequence:
            length //= self._grid.layout.tp
        for stage in self._stages:
            x = inputs_BT
            if not stage.piece.embedding:
                x = torch.empty(len(inputs_BT), length, width, device=self._grid.device)
                self._pass(dist.recv, x, stage.piece.stage - 1)
            y = stage(x)
            if stage.piece.head:
                total += self._loss(stage.model, y, targets_BT)
            else:
                self._pass(dist.send, y.contiguous(), stage.piece.stage + 1)
        return total

    def take_busy(self) -> dict[int, float]:
        """Return the seconds that each local stage has computed since the last call."""
        taken = dict(self.busy_s)
        self.busy_s.update(dict.fromkeys(taken, 0.0))
        return taken

    def take_spent(self) -> float:
        """Return the seconds that steps of the schedule took since the last call, waiting included."""
        spent, self._spent_s = self._spent_s, 0.0
        return spent

    def _pass(self, how: Callable[..., Any], x: Tensor, stage: int) -> None:
        """Exchange activations with a neighbouring stage; on the same process, keep them here."""
        position = self._cut.pieces[stage].position
        if position != self._grid.at["pp"]:
            how(x, self._grid.peer(pp=position), group=self._grid.group("pp"))
            return
        if how is dist.send:
            self._local = x
        else:
            x.copy_(self._local)

    def _mean_loss(self, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """The loss of a micro-batch; its time counts for the last stage, which `_timed` does not see."""
        last = next(stage for stage in self._stages if stage.piece.head)
        begin = time.perf_counter()
        loss = self._loss(last.model, x_BTD, targets_BT) / self._num_targets
        self.busy_s[last.piece.stage] += time.perf_counter() - begin
        return loss

    def _time(self, row: Any) -> None:
        for name in _TIMED:
            setattr(row, name, self._timed(getattr(row, name), row.stage_index))

    def _timed(self, call: Callable[..., Any], stage: int) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.busy_s[stage] += time.perf_counter() - begin

        return timed
