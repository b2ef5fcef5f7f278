"""The embedding that both ends of an asynchronous pipeline hold, and whose gradient is the sum of both.

Waiting for the sum would stall the pipeline. So each end sends its part when a batch has come back to it, and
applies the sum some micro-batches later: the first stage almost at once, as its part is the last; the last
stage after as many micro-batches as there are stages. Both apply the same sums in the same order, and so hold
the same bits at every boundary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from windlass.parallel.device_mesh import Mesh
from windlass.parallel.local_params import TIED
from windlass.parallel.param_shard import ParamShard
from windlass.spec.run import Run


def tied_gradient(
    holdings: Sequence[ParamShard], grid: Mesh, run: Run, micro_batches: int
) -> TiedGradient | None:
    """Return this process's end of the exchange, None if it has none. All processes must call this
    together."""
    if not getattr(run.network, "tied", True):
        return None
    group, tied = grid.ends(), [h for h in holdings if h.name == TIED]
    if group is None or not tied:
        return None
    turn = 1 if grid.at["pp"] == 0 else min(grid.layout.pp, micro_batches)
    return TiedGradient(tied[0], group, turn)


class TiedGradient:
    """One end of the exchange."""

    def __init__(self, holding: ParamShard, group: dist.ProcessGroup, turn: int) -> None:
        self._holding, self._group = holding, group
        self._under_way: tuple[dist.Work, Tensor] | None = None
        self.turn = turn
        """Number of micro-batches of the next batch that come back before the sum is applied."""

    @property
    def under_way(self) -> bool:
        return self._under_way is not None

    def send(self) -> None:
        """Start to sum this batch's gradient, which is removed from the holding."""
        own = self._holding.tensor.grad
        assert own is not None
        assert not self.under_way
        self._holding.tensor.grad = None
        work = dist.all_reduce(own, group=self._group, async_op=True)
        assert work is not None
        self._under_way = (work, own)

    def take(self) -> ParamShard:
        """Wait for the sum and set it as the holding's gradient."""
        assert self._under_way is not None
        work, total = self._under_way
        work.wait()
        self._under_way, self._holding.tensor.grad = None, total
        return self._holding
