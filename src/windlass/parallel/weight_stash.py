"""Weight stashing: keeps the weights of a micro-batch's forward pass until its backward pass.

Weights are copied only if an update comes in between. Embedding tables need no copy: the backward pass of a
look-up uses the tokens, not the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from windlass.parallel.stage import ModelStage

Version = list[nn.Parameter]
"""The weights of a stage after some update, in the order of its modules."""


class Stash:
    """The weights of a stage, and which version of them it computes with."""

    def __init__(self, stage: ModelStage) -> None:
        self._slots = [
            (module, name, parameter)
            for module in stage.modules()
            for name, parameter in module.named_parameters(recurse=False)
        ]
        self._live = [parameter for _, _, parameter in self._slots]
        # On the stage with the head, a tied table is also multiplied.
        tables = () if stage.piece.head else (nn.Embedding,)
        self._looked_up = {
            id(parameter) for module, _, parameter in self._slots if isinstance(module, tables)
        }
        self._newest: Version | None = None
        self._mounted = self._live

    def open(self, *, lasting: bool) -> Version:
        """Return the weights for a forward pass: copies if they must last beyond the next update."""
        if self._newest is None:
            self._newest = [self._copied(weight) for weight in self._live] if lasting else self._live
        return self._newest

    def close(self) -> None:
        """After an update: drop the newest version; micro-batches in flight keep their own references."""
        self._newest = None
        self.mount(self._live)

    def mount(self, version: Version) -> None:
        """Make the stage compute with these weights."""
        if version is self._mounted:
            return
        for (module, name, _), weight in zip(self._slots, version, strict=True):
            setattr(module, name, weight)
        self._mounted = version

    @contextmanager
    def adding_up(self, version: Version) -> Iterator[None]:
        """Run a backward pass with a version; its gradients are added to those of the live weights."""
        self.mount(version)
        for weight, live in zip(version, self._live, strict=True):
            weight.grad = live.grad
        yield
        for weight, live in zip(version, self._live, strict=True):
            if weight is not live:
                live.grad, weight.grad = weight.grad, None

    def _copied(self, weight: nn.Parameter) -> nn.Parameter:
        return weight if id(weight) in self._looked_up else nn.Parameter(weight.detach().clone())
