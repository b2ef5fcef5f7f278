"""The weights of a process as plain tensors, without DTensor.

Tensor parallel and sharding turn parameters into DTensors. Everything after the backward pass works on
their local parts, which share memory with them: the optimizer, clipping, the exchange between replicas and
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from windlass.parallel.device_mesh import Mesh
from windlass.parallel.param_shard import ParamShard, Slice, whole
from windlass.parallel.param_specs import kind_of
from windlass.parallel.partition import box_of
from windlass.parallel.stage import ModelStage
from windlass.spec.layout import V_SHAPED, Partition

TIED = "embedding.weight"


class LocalParams:
    """The parameter shards of this process (`holdings`), and how their gradients are reduced."""

    def __init__(self, stages: Sequence[ModelStage], grid: Mesh, cut: Partition) -> None:
        self._grid, self._cut = grid, cut
        self._tied = _tied_across(stages, grid)
        self._meet = grid.layout.schedule in V_SHAPED
        self._ends = grid.ends() if self._tied and grid.layout.pp > 1 else None
        self._pairs = [(p, self._holding(name, p)) for name, p in _named(stages)]
        self._twins = self._split_off_twins()
        self.holdings = [holding for _, holding in self._pairs]
        self._model_group = grid.group("pp", "sharded", "tp")

    def init_weights(self, value: Callable[[str, tuple[int, ...]], Tensor]) -> None:
        """Set every shard from the whole weight that `value` returns; one whole is in memory at a time."""
        with torch.no_grad():
            for holding in self.holdings:
                inside = holding.box.within(whole(holding.shape))
                holding.tensor.copy_(value(holding.name, holding.shape)[inside])
        self.sync_tied()

    def reduce_grads(self, *, tied: bool = True) -> None:
        """Set the shards' gradients after a backward pass, summed over cp and (`tied`) both ends."""
        for parameter, holding in (*self._pairs, *self._twins):
            holding.tensor.grad = _gradient(parameter, holding)
        if tied:
            self._sum_tied()
        self._sum_over(self._grid.group("cp"), self.holdings)

    def clear(self) -> None:
        for parameter, holding in (*self._pairs, *self._twins):
            parameter.grad = None
            holding.tensor.grad = None

    def sync_tied(self) -> None:
        """After an update: copy the tied matrix to its second copy on this process, if there is one."""
        with torch.no_grad():
            for _, twin in self._twins:
                first = next(h for h in self.holdings if h.name == twin.name)
                twin.tensor.copy_(first.tensor)

    def clip(self, max_norm: float) -> float:
        """Clip the gradients to a global norm of `max_norm`; return the norm before."""
        gradients = [h.tensor.grad for h in self.holdings if h.tensor.grad is not None and h.tensor.numel()]
        squares = [
            n.square() / h.copies for n, h in zip(torch._foreach_norm(gradients), self._filled(), strict=True)
        ]
        total = torch.stack(squares).sum()
        if self._model_group is not None:
            dist.all_reduce(total, group=self._model_group)
        norm = total.sqrt()
        torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
        return float(norm)

    def _filled(self) -> list[ParamShard]:
        return [h for h in self.holdings if h.tensor.grad is not None and h.tensor.numel()]

    def _sum_tied(self) -> None:
        """Both ends of a pipeline hold the tied matrix; its gradient is the sum of theirs."""
        tied = [h for h in self.holdings if h.name == TIED] if self._tied else []
        for holding in tied:
            for _, twin in self._twins:
                assert holding.tensor.grad is not None
                assert twin.tensor.grad is not None
                holding.tensor.grad += twin.tensor.grad
        if not self._twins:
            self._sum_over(self._ends, tied)

    def _split_off_twins(self) -> list[tuple[nn.Parameter, ParamShard]]:
        """Where both pipeline ends are on one process, only the first of the two tied copies is updated."""
        tied = [pair for pair in self._pairs if pair[1].name == TIED]
        if len(tied) < 2:
            return []
        self._pairs = [pair for pair in self._pairs if pair is not tied[1]]
        return [tied[1]]

    def _sum_over(self, group: dist.ProcessGroup | None, holdings: Sequence[ParamShard]) -> None:
        if group is not None:
            for holding in holdings:
                dist.all_reduce(holding.tensor.grad, group=group)

    def _holding(self, name: str, parameter: nn.Parameter) -> ParamShard:
        box, by_features = self._box(name, parameter)
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        assert tuple(local.shape) == box.shape, f"{name}: {tuple(local.shape)} is not {box}"
        apart = self._tied and not self._meet and name == TIED
        return ParamShard(
            name=name,
            shape=tuple(parameter.shape),
            box=box,
            tensor=nn.Parameter(local.detach()) if isinstance(parameter, DTensor) else parameter,
            copies=(1 if by_features else self._grid.layout.tp) * (2 if apart else 1),
        )

    def _box(self, name: str, parameter: nn.Parameter) -> tuple[Slice, bool]:
        """Return the box of a parameter, and whether tensor parallel divides it."""
        layout, at = self._grid.layout, self._grid.at
        box = Slice(box_of(name, parameter.shape, self._cut, at["tp"], layout.tp))
        by_features = kind_of(name) in self._cut.features
        return box.divided(0, layout.sharded, at["sharded"]), by_features


def _gradient(parameter: nn.Parameter, holding: ParamShard) -> Tensor:
    """Return the local part of a gradient, zeros where there is none."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor):
        assert isinstance(parameter, DTensor)
        return gradient.redistribute(placements=parameter.placements).to_local()
    return torch.zeros_like(holding.tensor) if gradient is None else gradient


def reshard(stages: Sequence[ModelStage]) -> None:
    """Free the gathered weights that a forward pass without a backward pass leaves."""
    for stage in stages:
        for module in stage.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _named(stages: Sequence[ModelStage]) -> Iterator[tuple[str, nn.Parameter]]:
    for stage in stages:
        yield from stage.model.named_parameters()


def _tied_across(stages: Sequence[ModelStage], grid: Mesh) -> bool:
    """Whether the embedding is also the output matrix and is in two stages."""
    shape = stages[0].model.shape
    return grid.layout.stage_count > 1 and getattr(shape, "tied", True)
