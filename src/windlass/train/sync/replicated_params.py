"""The weights of this process and all that keeps them equal to other copies, behind one object.

A step calls it in this order, and other ranks call it together:

    collect     after each backward pass: reduce gradients within the replica (context parallel, tied matrix)
    reduce      sum gradients over the replicas
    clip        by the norm over the whole model
    update      apply them, exchange weights if that is due, copy the tied matrix

`LocalParams` knows the shards of one replica, `DataParallel` the exchange between replicas, `OrderedSum` the
sum of a deterministic run.
"""

from __future__ import annotations

import time

import torch

from windlass.parallel.local_params import LocalParams
from windlass.train.sync.data_parallel import DataParallel
from windlass.train.sync.deterministic_reduce import OrderedSum


class ReplicatedParams:
    """Parameter shards, their gradients, their optimizer, and their copies on other ranks."""

    def __init__(
        self,
        params: LocalParams,
        optimizer: torch.optim.Optimizer,
        replicas: DataParallel,
        ordered: OrderedSum | None = None,
    ) -> None:
        self._params, self._optimizer = params, optimizer
        self._replicas, self._ordered = replicas, ordered

    def collect(self, replica: int) -> None:
        """Reduce the gradients of a backward pass within this replica.

        A deterministic run computes the batch of several of the job's replicas, one `replica` at a time.
        """
        self._params.reduce_grads()
        if self._ordered is not None:
            self._ordered.keep(replica)
            self._params.clear()

    def reduce(self, step: int) -> None:
        """Sum the gradients over all replicas, if the sync policy does so at every step."""
        if self._ordered is not None:
            self._ordered.add_up()
        else:
            self._replicas.after_backward(step)

    def clip(self, max_norm: float) -> float:
        """Clip the gradients to a global norm of `max_norm`; return the norm before."""
        return self._params.clip(max_norm)

    def update(self, step: int, train_s: float) -> float:
        """Apply the gradients of step `step` and exchange weights if that is due; return the seconds of the
        optimizer."""
        begin = time.perf_counter()
        self._optimizer.step()
        self._params.clear()
        seconds = time.perf_counter() - begin
        self._replicas.after_update(step, train_s + seconds)
        self._params.sync_tied()
        return seconds

    def average_now(self) -> None:
        """Make the weights of all replicas equal."""
        self._replicas.average_now()
        self._params.sync_tied()
