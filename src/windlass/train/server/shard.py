"""What one server holds: boxes of the weights with their moments, and gradients that wait for their commit.

Input: gradients (`stage`) and commits. Output: weights (`pull`) and parts of checkpoints (`save`). Everything
that changes it is in the log first, so `restore` brings back what a death interrupted: the newest checkpoint
and whatever was done since.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from windlass.models.build import outline
from windlass.parallel.crew import Alone, Crew
from windlass.parallel.cut import cut_model
from windlass.parallel.holding import Holding, whole
from windlass.parallel.strategy import first_values
from windlass.spec.errors import BadInput, StoreFailed
from windlass.spec.run import CHECKPOINTS, Run
from windlass.spec.served import log_file
from windlass.train.checkpoint import State, restore_newest
from windlass.train.optimize import build_optimizer, set_rate
from windlass.train.server.division import divide_weights
from windlass.train.server.frames import Frame
from windlass.train.server.log import Log
from windlass.train.server.updates import Update
from windlass.train.tiers import Checkpoints, Copies, Tell

ROWS = "#rows"
"""Ends the name of an array that says which rows of a weight another array holds."""

LOG_BYTES, LOG_UPDATES = 1 << 30, 32
"""A log longer than so many bytes, and so many gradients, is due to be replaced by a checkpoint."""

Share = Mapping[str, Tensor]
"""A gradient, or a share of one: by weight, whole boxes or rows of them."""


class Shard:
    """The part of a run that one server holds."""

    def __init__(self, run: Run, folder: Path, number: int, tell: Tell) -> None:
        self._run, self._folder, self._number = run, folder, number
        self.lock = threading.RLock()
        self.holdings = _holdings(run, folder, number)
        self._by_name = {holding.name: holding for holding in self.holdings}
        self._optimizer = build_optimizer(self.holdings, run)
        self._checkpoints = Checkpoints(folder, run.job, tell)
        self._log = Log(
            log_file(folder, number), number=number, servers=run.job.sync.servers, kept=run.job.sync.log
        )
        self._staged: dict[str, Share] = {}
        self._summed: tuple[str, ...] = ()
        self.version = 0
        """Updates that were made."""
        self.base = State(0, 0, 0.0)
        """The checkpoint that the log follows."""

    def restore(self) -> tuple[list[Update], list[str]]:
        """Go on from the newest checkpoint and the log; return the updates since, and what was passed over.

        A log of another number of servers, or of another boot of the machine, is not used.
        """
        state, _, passed_over = restore_newest(
            self._folder / CHECKPOINTS,
            self.holdings,
            self._optimizer,
            crew=Alone(),
            spare=Copies.of(self._folder) if self._number == 0 else None,
        )
        self.base = state or self.base
        self.version = self.base.step
        return [
            update for frame in self._log.reopen(self.base.step) for update in self._redo(frame)
        ], passed_over

    def _redo(self, frame: Frame) -> list[Update]:
        if "task" in frame.head:
            self._staged[frame.head["task"]] = frame.arrays
            return []
        update = Update.heard(frame.head["commit"])
        self._apply(update)
        return [update]

    @torch.no_grad()
    def pull(self, rows: Share, *, ahead: int = 0) -> tuple[int, dict[str, Tensor]]:
        """Return the number of updates, and copies of all boxes; of weights in `rows`, only those rows.

        They are as they stand, or as they will be after `ahead` further updates by what momentum knows.
        """
        with self.lock:
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
            return self.version, arrays

    def stage(self, task: str, share: Share) -> None:
        """Keep a gradient until its commit."""
        self._check(share)
        with self.lock:
            self._log.append({"task": task}, share)
            self._staged[task] = share

    def staged(self) -> list[str]:
        with self.lock:
            return list(self._staged)

    def drop(self, tasks: Sequence[str]) -> None:
        """Forget gradients that will not be committed; a log still has them, which does no harm."""
        with self.lock:
            for task in tasks:
                self._staged.pop(task, None)

    def square(self, tasks: Sequence[str]) -> float:
        """Add up some gradients, and return the square of the sum's norm."""
        with self.lock:
            gradients = self._sum(tasks)
            return (
                float(torch.stack([n.square() for n in torch._foreach_norm(gradients)]).sum())
                if gradients
                else 0.0
            )

    def commit(self, update: Update) -> None:
        """Make an update, once; whoever is not sure whether it was made says it again."""
        with self.lock:
            if update.number <= self.version:
                return
            assert update.number == self.version + 1, f"update {update.number} after {self.version}"
            self._log.append({"commit": asdict(update)})
            self._apply(update)

    def save(self, state: State, crew: Crew) -> Path:
        """Write this server's part of a checkpoint, together with all others, and begin a new log."""
        run = self._run
        with self.lock:
            began = self._checkpoints.begin(
                state, self.holdings, self._optimizer, crew=crew, layout=run.layout,
                cut=cut_model(run.network, run.layout), beside=False,
            )  # fmt: skip
            if not began:
                raise StoreFailed(f"{self._folder / CHECKPOINTS}: the checkpoint of step {state.step} failed")
            try:
                path = self._checkpoints.end_now()
            except OSError:
                self._checkpoints.give_up()
                raise
            self.base = state
            self._log.begin(state.step)
            return path

    @property
    def due(self) -> bool:
        """Whether [checkpoint] seconds have passed since the last one, or the log has become too long."""
        held = sum(holding.tensor.nbytes for holding in self.holdings)
        return self._checkpoints.due() or self._log.bytes > max(LOG_BYTES, LOG_UPDATES * held)

    def missing(self, tasks: Sequence[str]) -> list[str]:
        """Return those of some tasks whose gradients are not here."""
        with self.lock:
            return [task for task in tasks if task not in self._staged]

    def close(self, within_s: float) -> None:
        self._checkpoints.close(within_s)
        self._log.close()

    def _apply(self, update: Update) -> None:
        gradients = self._sum(update.tasks)
        if update.shrink is not None:
            torch._foreach_mul_(gradients, update.shrink)
        set_rate(self._optimizer, update.rate)
        self._optimizer.step()
        for holding in self.holdings:
            holding.tensor.grad = None
        for task in update.tasks:
            del self._staged[task]
        self._summed, self.version = (), update.number

    def _sum(self, tasks: Sequence[str]) -> list[Tensor]:
        """Let the gradient of each box be the sum of those of some tasks, and return them."""
        if self._summed != tuple(tasks):
            shares = [self._staged[task] for task in tasks]
            for holding in self.holdings:
                holding.tensor.grad = _added(holding, shares)
            self._summed = tuple(tasks)
        return [h.tensor.grad for h in self.holdings if h.tensor.grad is not None]

    def _check(self, share: Share) -> None:
        """Refuse what is not a gradient of these boxes."""
        for holding in self.holdings:
            given, rows = share.get(holding.name), share.get(holding.name + ROWS)
            wanted = holding.box.shape if rows is None else (len(rows), *holding.box.shape[1:])
            if given is None or tuple(given.shape) != wanted:
                found = None if given is None else list(given.shape)
                raise BadInput(f"gradient of '{holding.name}' is {found} here, not {list(wanted)}")


def _holdings(run: Run, folder: Path, number: int) -> list[Holding]:
    """Build the boxes of one server, with their first values; one whole weight is in memory at a time."""
    model = outline(run.network)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    value, holdings = first_values(run, model, folder), list[Holding]()
    for name, box in divide_weights(shapes, run.job.sync.servers)[number].items():
        inside = box.within(whole(shapes[name]))
        first = value(name, shapes[name])[inside].to(torch.float32).clone()
        holdings.append(Holding(name, shapes[name], box, nn.Parameter(first), copies=1))
    if not holdings:
        raise BadInput(f"[sync] servers = {run.job.sync.servers}: there are not enough weights for so many")
    return holdings


def foreseen(weight: nn.Parameter, optimizer: torch.optim.Optimizer, ahead: int) -> Tensor:
    """Return where AdamW's first moment alone would take a weight in some updates, in memory of its own.

    A gradient that is computed there is applied near there (DANA, Hakimi et al. 2019, arXiv:1907.11612).
    """
    state = optimizer.state.get(weight, {})
    if ahead == 0 or "exp_avg" not in state:
        return weight.detach().clone()
    group, step = optimizer.param_groups[0], float(state["step"])
    (beta1, beta2), rate = group["betas"], group["lr"]
    way = sum(beta1**number for number in range(1, ahead + 1)) / (1 - beta1**step)
    size = (state["exp_avg_sq"] / (1 - beta2**step)).sqrt_().add_(group["eps"])
    return weight.detach().addcdiv(state["exp_avg"], size, value=-rate * way)


def _added(holding: Holding, shares: Sequence[Share]) -> Tensor:
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
