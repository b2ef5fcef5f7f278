"""One server's slices of the weights of a network, with their AdamW moments.

An update of a whole batch is one step of the optimizer. An update of a share k of a batch counts k of one:
the moments' memory is kept in samples (beta ** k), the rate falls with the root of k, because a gradient of
fewer samples is noisier (Malladi et al. 2022, arXiv:2205.10287), and decay is that of k steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from windlass.models.build import outline
from windlass.parallel.param_shard import ParamShard, whole
from windlass.parallel.partition import cut_model
from windlass.parallel.process_group import SingleProcess
from windlass.parallel.strategy import first_values
from windlass.spec.errors import BadInput
from windlass.spec.run import CHECKPOINTS, Run
from windlass.train.checkpoint.async_save import State, restore_newest
from windlass.train.checkpoint.checkpointer import Checkpointer, Copies, EmitEvent
from windlass.train.optimize import build_optimizer, set_rate
from windlass.train.server.shard_state import ROWS, ServerGroup, Share
from windlass.train.server.sharding import divide_weights
from windlass.train.server.updates import ServerUpdate


class NetworkShardState:
    """The weight slices of one server, and their optimizer."""

    stage = "network"

    def __init__(self, run: Run, folder: Path, number: int, emit: EmitEvent) -> None:
        self._run, self._folder, self._number = run, folder, number
        self.holdings = _holdings(run, folder, number)
        self._by_name = {holding.name: holding for holding in self.holdings}
        self._optimizer = build_optimizer(self.holdings, run)
        self._decays = [group["weight_decay"] for group in self._optimizer.param_groups]
        self._checkpoints = Checkpointer(folder, run.job, emit)
        self._uneven = False
        """True after an update of less than a batch."""

    @property
    def bytes(self) -> int:
        return sum(holding.tensor.nbytes for holding in self.holdings)

    @property
    def due(self) -> bool:
        return self._checkpoints.due()

    def load(self) -> tuple[State | None, list[str]]:
        state, _, skipped = restore_newest(
            self._folder / CHECKPOINTS,
            self.holdings,
            self._optimizer,
            group=SingleProcess(),
            remote=Copies.of(self._folder) if self._number == 0 else None,
        )
        return state, skipped

    @torch.no_grad()
    def values(self, rows: Share, ahead: int) -> dict[str, Tensor]:
        arrays: dict[str, Tensor] = {}
        for name, holding in self._by_name.items():
            value = foreseen(holding.tensor, self._optimizer, ahead)
            wanted = rows.get(name + ROWS)
            if wanted is None:
                arrays[name] = value
                continue
            first, until = holding.box.spans[0]
            inside = wanted[(wanted >= first) & (wanted < until)]
            arrays[name + ROWS], arrays[name] = inside, value[inside - first]
        return arrays

    def check(self, share: Share) -> None:
        for holding in self.holdings:
            given, rows = share.get(holding.name), share.get(holding.name + ROWS)
            wanted = holding.box.shape if rows is None else (len(rows), *holding.box.shape[1:])
            if given is None or tuple(given.shape) != wanted:
                found = None if given is None else list(given.shape)
                raise BadInput(f"gradient of '{holding.name}' is {found} here, not {list(wanted)}")

    def square(self, shares: Sequence[Share]) -> float:
        gradients = [_added(holding, shares) for holding in self.holdings]
        return float(torch.stack([n.square() for n in torch._foreach_norm(gradients)]).sum())

    def apply(self, shares: Sequence[Share], update: ServerUpdate) -> dict[str, Any]:
        gradients = [_added(holding, shares) for holding in self.holdings]
        if update.shrink is not None:
            torch._foreach_mul_(gradients, update.shrink)
        for holding, gradient in zip(self.holdings, gradients, strict=True):
            holding.tensor.grad = gradient
        self._tune(update)
        self._optimizer.step()
        for holding in self.holdings:
            holding.tensor.grad = None
        return {}

    def unsaved(self) -> Iterator[tuple[dict[str, Any], Share]]:
        return iter(())

    def restore_unsaved(self, head: Mapping[str, Any], share: Share) -> None:
        raise AssertionError("a checkpoint of a network holds everything")

    def missing_for(self, _update: ServerUpdate) -> list[str]:
        return []

    def save(self, state: State, group: ServerGroup) -> Path:
        run = self._run
        return self._checkpoints.save(
            state, self.holdings, self._optimizer, group=group, layout=run.layout,
            cut=cut_model(run.network, run.layout), wait=True,
        )  # fmt: skip

    def close(self, within_s: float) -> None:
        self._checkpoints.close(within_s)

    def _tune(self, update: ServerUpdate) -> None:
        """Scale the optimizer's settings to the size of an update."""
        train, share = self._run.job.train, update.positions / self._run.batch_sequences
        set_rate(self._optimizer, update.rate)
        for group, decay in zip(self._optimizer.param_groups, self._decays, strict=True):
            group["betas"] = (train.beta1**share, train.beta2**share)
            group["weight_decay"] = decay * share**0.5
        self._uneven |= share != 1
        if not self._uneven:
            return  # the optimizer's own step count is right
        before = torch.tensor(update.more["before"] / update.positions)
        for state in self._optimizer.state.values():  # used for bias correction
            state["step"].copy_(before)


def _holdings(run: Run, folder: Path, number: int) -> list[ParamShard]:
    """Build the slices of one server with their initial values; one whole weight is in memory at a time."""
    model = outline(run.network)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    value, holdings = first_values(run, model, folder), list[ParamShard]()
    for name, box in divide_weights(shapes, run.job.sync.servers)[number].items():
        inside = box.within(whole(shapes[name]))
        first = value(name, shapes[name])[inside].to(torch.float32).clone()
        holdings.append(ParamShard(name, shapes[name], box, nn.Parameter(first), copies=1))
    if not holdings:
        raise BadInput(f"[sync] servers = {run.job.sync.servers}: there are not enough weights for so many")
    return holdings


def foreseen(weight: nn.Parameter, optimizer: torch.optim.Optimizer, ahead: int) -> Tensor:
    """Return a copy of a weight extrapolated by `ahead` updates of AdamW's first moment alone.

    A gradient computed there is applied near there (DANA, Hakimi et al. 2019, arXiv:1907.11612).
    """
    state = optimizer.state.get(weight, {})
    if ahead == 0 or "exp_avg" not in state:
        return weight.detach().clone()
    group, step = optimizer.param_groups[0], float(state["step"])
    (beta1, beta2), rate = group["betas"], group["lr"]
    way = sum(beta1**number for number in range(1, ahead + 1)) / (1 - beta1**step)
    size = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
    return weight.detach().addcdiv(state["exp_avg"], size, value=-rate * way)


def _added(holding: ParamShard, shares: Sequence[Share]) -> Tensor:
    if len(shares) == 1 and holding.name + ROWS not in shares[0]:
        return shares[0][holding.name]
    total = torch.zeros_like(holding.tensor)
    for share in shares:
        rows = share.get(holding.name + ROWS)
        if rows is None:
            total += share[holding.name]
        else:
            total[rows - holding.box.spans[0][0]] += share[holding.name]
    return total
