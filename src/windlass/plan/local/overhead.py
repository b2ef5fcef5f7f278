"""From the parts of a pass to the whole pass, by passes that the probe measured.

What a pass computes takes longer than the sum of its parts, because autograd, the allocator and caches that
are cold come on top; passes of processes that divide nothing tell by how much, on a line. What dividing adds
is what passes that are divided took beyond that: the exchange itself, but also copies before and after it and
torch's bookkeeping for divided tensors. It follows a curve of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from windlass.plan.local.curve import CostCurve, LinearCost
from windlass.plan.local.kernel_costs import (
    Dims,
    ProcessShare,
    Way,
    dims_of_block,
    ends_exchanges_s,
    ends_parts_s,
    layer_exchanges_s,
    layer_parts_s,
)
from windlass.plan.local.profile import BlockTime
from windlass.plan.local.rates import MachineRates


def layer_s(rates: MachineRates, dims: Dims, share: ProcessShare) -> float:
    """One layer of a micro-batch, forward and backward."""
    return _Wholes(rates, layer_parts_s, layer_exchanges_s, lambda block: block.layer_s).seconds(dims, share)


def ends_s(rates: MachineRates, dims: Dims, share: ProcessShare) -> float:
    """All but the layers: embedding, last norm and loss."""
    return _Wholes(rates, ends_parts_s, ends_exchanges_s, lambda block: block.ends_s).seconds(dims, share)


class _Wholes:
    """What the passes of a setting tell of one share of a pass."""

    def __init__(
        self,
        rates: MachineRates,
        parts: Callable[[MachineRates, Dims, ProcessShare], float],
        exchanges: Callable[[MachineRates, Dims, ProcessShare], dict[Way, float]],
        whole: Callable[[BlockTime], float],
    ) -> None:
        self._rates, self._parts, self._exchanges, self._whole = rates, parts, exchanges, whole
        known = rates.setting.blocks
        plain = [block for block in known if block.division == "plain"] or known
        self._computed = LinearCost((self._parts_of(block), whole(block)) for block in plain)

    def seconds(self, dims: Dims, share: ProcessShare) -> float:
        added = self._exchanges(self._rates, dims, share).items()
        computed = self._computed(self._parts(self._rates, dims, share))
        return computed + sum(self._added(way, seconds) for way, seconds in added)

    def _added(self, way: Way, seconds: float) -> float:
        """Return what dividing adds whose exchanges alone take so long; at least that."""
        measured = [block for block in self._rates.setting.blocks if block.division == way]
        points = [self._beyond(block, way) for block in measured]
        return max(seconds, CostCurve(points)(seconds)) if points else seconds

    def _beyond(self, block: BlockTime, way: Way) -> tuple[float, float]:
        alone = self._exchanges(self._rates, dims_of_block(block), self._share(block))[way]
        return alone, max(alone, self._whole(block) - self._computed(self._parts_of(block)))

    def _parts_of(self, block: BlockTime) -> float:
        return self._parts(self._rates, dims_of_block(block), self._share(block))

    def _share(self, block: BlockTime) -> ProcessShare:
        tp, sharded = (
            self._rates.setting.processes if block.division == way else 1 for way in ("tp", "sharded")
        )
        return ProcessShare(block.sequences, tp, sharded)
