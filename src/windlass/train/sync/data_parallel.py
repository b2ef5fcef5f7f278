"""Synchronises the tensors of data-parallel replicas, as policy.py decides.

    every-step          gradients are summed before each update
    local, timed        weights are averaged at intervals
    diloco              an outer optimizer moves an anchor by the mean distance of the replicas from it, and
                        they continue from there (Douillard et al. 2023, arXiv:2311.08105);
                        with fragments and delay as in Streaming DiLoCo (2025, arXiv:2501.18512)

Averaging is the outer optimizer with rate 1 and no momentum, so all but every-step take one path. Inner
optimizers stay with their replicas. All processes call every method together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from windlass.parallel.param_shard import ParamShard
from windlass.spec.sync import Sync
from windlass.train.sync.comm_counter import CountedGroup
from windlass.train.sync.compression import End, Payload, Uncompressed, build_compressor
from windlass.train.sync.policy import cut_into_fragments, first_schedule, keeps_residual, outer_numbers

KEPT_SHARE = 0.5
"""Share of its own weights that a replica keeps when a delayed exchange arrives, as in Streaming DiLoCo: 0
would discard the steps made meanwhile, 1 would ignore the other replicas."""


class DataParallel:
    """Synchronisation of the replicas along dp. Created when all of them hold equal weights."""

    def __init__(
        self, holdings: Sequence[ParamShard], group: dist.ProcessGroup | None, sync: Sync, step: int = 0
    ) -> None:
        self._weights = {h.name: h.tensor for h in holdings if h.tensor.numel()}
        self._shared = {h.name for h in holdings if h.copies > 1}
        self._device = holdings[0].tensor.device
        self._wire = CountedGroup(group)
        self._momentum: Payload = {}
        self._step = step
        self._adopt(sync)

    @property
    def sync(self) -> Sync:
        return self._sync

    @property
    def bytes_sent(self) -> int:
        """Payload bytes sent by this process so far, by the rule in comm_counter.py."""
        return self._wire.bytes_sent

    @property
    def alone(self) -> bool:
        return self._wire.replicas == 1

    @property
    def has_sync_points(self) -> bool:
        """True if sync points occur by schedule; if not, only `average_now` makes one."""
        return self.alone or self._schedule.has_sync_points

    def at_sync_point(self, step: int) -> bool:
        """Return True if all replicas hold equal weights after `step`."""
        return self.alone or self._schedule.is_sync_point(step)

    @torch.no_grad()
    def after_backward(self, step: int) -> None:
        """Under every-step, all-reduce the gradients over the replicas."""
        if self.alone or self._sync.local:
            return
        for weight in self._weights.values():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        gradients = {name: w.grad for name, w in self._weights.items() if w.grad is not None}
        self._add_up(gradients)()

    @torch.no_grad()
    def after_update(self, step: int, train_s: float) -> None:
        """Under the other policies, exchange what is due after `step` steps, which took `train_s` in all."""
        self._step = step
        if self.alone:
            return
        for fragment in self._schedule.starts(step):
            self._start(fragment)
        for fragment in self._schedule.ends(step):
            self._end(fragment)
        if self._sync.policy == "timed" and self._schedule.is_sync_point(step):
            self._pace(train_s)

    @torch.no_grad()
    def average_now(self) -> None:
        """Make all weights equal ahead of schedule: finish pending exchanges, then average.

        The outer optimizer is not involved, as its momentum is meant for whole periods.
        """
        if self.at_sync_point(self._step):
            return
        for fragment in list(self._under_way):
            self._end(fragment)
        walked = {name: self._anchor[name] - weight for name, weight in self._weights.items()}
        self._add_up(walked)()
        for name, weight in self._weights.items():
            self._anchor[name].sub_(walked[name].div_(self._wire.replicas))
            weight.copy_(self._anchor[name])
        self._begin_period()

    def change(self, sync: Sync) -> None:
        """Average now and switch to another policy; state that stays valid is kept."""
        self.average_now()
        before, residual = self._sync, self._compressor.residual
        self._adopt(sync)
        if keeps_residual(before, sync):
            self._compressor.residual = residual

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return the sync state for a checkpoint: kind -> weight name -> values.

        Replicas are averaged first, so the anchor equals the weights. The residual of compression is summed
        over the replicas, and each continues with an equal part of it: so one copy serves any number of
        replicas, and a run that resumes does the same as one that continues.
        """
        if self.alone:
            return {}
        self.average_now()
        left = {name: t.clone() for name, t in self._compressor.residual.items()}
        Uncompressed(self._wire).start(left)()
        self._share_out(left)
        self._compressor.forget()
        kinds = {"momentum": dict(self._momentum), "residual": left}
        return {kind: tensors for kind, tensors in kinds.items() if tensors}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        """Continue from a checkpoint of `step`, whose weights are loaded already."""
        self._step = step
        self._adopt(self._sync)
        if self.alone:
            return
        for name, momentum in self._momentum.items():
            momentum.copy_(state.get("momentum", {}).get(name, torch.zeros_like(momentum)))
        self._share_out(state.get("residual", {}))

    def _adopt(self, sync: Sync) -> None:
        """Start a policy at a sync point."""
        self._sync = sync
        self._schedule = first_schedule(sync, self._step)
        self._compressor = build_compressor(sync, self._wire)
        self._under_way: dict[int, tuple[Payload, End]] = {}
        self._paced_s: float | None = None
        self._anchor: Payload = {}
        if sync.local and not self.alone:
            self._anchor = {name: weight.detach().clone() for name, weight in self._weights.items()}
        sizes = {name: weight.numel() for name, weight in self._weights.items()}
        self._fragments = cut_into_fragments(sizes, sync.fragments, self._shared)
        held = self._momentum if outer_numbers(sync)[1] else {}
        wanted = self._anchor if outer_numbers(sync)[1] else {}
        self._momentum = {name: held.get(name, torch.zeros_like(t)) for name, t in wanted.items()}

    def _start(self, fragment: int) -> None:
        """Start to sum this replica's distance from the anchor."""
        walked = {name: self._anchor[name] - self._weights[name] for name in self._fragments[fragment]}
        self._under_way[fragment] = (walked, self._add_up(walked))

    def _add_up(self, payload: Payload) -> End:
        """Start a sum over the replicas; an empty fragment needs no communication."""
        return self._compressor.start(payload) if payload else lambda: None

    def _end(self, fragment: int) -> None:
        """Move the anchor by the outer optimizer, and the replica to it."""
        walked, end = self._under_way.pop(fragment)
        end()
        rate, momentum = outer_numbers(self._sync)
        for name, total in walked.items():
            anchor, weight = self._anchor[name], self._weights[name]
            push = nesterov(total.div_(self._wire.replicas), self._momentum.get(name), momentum)
            anchor.sub_(push, alpha=rate)
            if self._sync.delay:
                weight.lerp_(anchor, 1 - KEPT_SHARE)
            else:
                weight.copy_(anchor)

    def _pace(self, train_s: float) -> None:
        """Measure the duration of steps, and schedule the next exchange."""
        if self._paced_s is None:
            self._schedule = self._schedule.begun_at(self._step)
        else:
            step_s = (train_s - self._paced_s) / (self._step - self._schedule.origin)
            self._schedule = self._schedule.paced(self._step, self._wire.slowest(step_s, self._device))
        self._paced_s = train_s

    def _begin_period(self) -> None:
        self._schedule, self._paced_s = self._schedule.begun_at(self._step), None

    def _share_out(self, left: Mapping[str, Tensor]) -> None:
        self._compressor.residual = {name: t / self._wire.replicas for name, t in left.items()}


def nesterov(slope: Tensor, momentum: Tensor | None, factor: float) -> Tensor:
    """Return the direction of a Nesterov step as in torch.optim.SGD; updates `momentum`."""
    if momentum is None:
        return slope
    momentum.mul_(factor).add_(slope)
    return slope.add_(momentum, alpha=factor)
