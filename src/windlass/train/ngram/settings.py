"""Which model is wanted, and how much is in hand at a time so that the memory given is enough."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.spec.errors import BadInput
from windlass.spec.units import format_bytes
from windlass.train.ngram.blocks import Packing

PROCESS_BYTES = 64 << 20
"""What a process needs before it counts anything: the interpreter and numpy."""
MIN_BLOCK, MAX_BLOCK = 1 << 16, 1 << 23
SHARE = 1 << 20
"""Windows that are counted sooner than a process is started for them."""
MIN_MEMORY = 3 * PROCESS_BYTES
NODE_BYTES = 160
"""Of memory for each n-gram in hand while links and estimates are made."""


@dataclass(frozen=True)
class CountSettings:
    """Which model is wanted, and what may be used to make it."""

    packing: Packing
    thresholds: tuple[int, ...]
    memory: int
    processes: int
    block: int | None = None
    """Windows in one block; as many as the memory allows if left out."""

    def __post_init__(self) -> None:
        if self.memory < MIN_MEMORY:
            raise BadInput(
                f"[model.ngram] memory = {format_bytes(self.memory)} is too little to count in",
                hint=f"give at least {format_bytes(MIN_MEMORY)}",
            )

    @property
    def workers(self) -> int:
        """As many processes as there is memory for, each with some to count in."""
        return max(1, min(self.processes, self.memory // (2 * PROCESS_BYTES) - 1))

    @property
    def block_windows(self) -> int:
        if self.block is not None:
            return self.block
        free = self.memory - (self.workers + 1) * PROCESS_BYTES
        return min(MAX_BLOCK, max(MIN_BLOCK, free // self.workers // self._window_bytes))

    @property
    def piece(self) -> int:
        """How many windows are in hand when runs are merged into the tree."""
        free = self.memory - 2 * PROCESS_BYTES
        return max(MIN_BLOCK, free // (3 * self._record_bytes + 40 + 14 * self.packing.order))

    @property
    def chunk(self) -> int:
        """How many n-grams are in hand when links and estimates are made."""
        return min(1 << 20, max(1 << 12, (self.memory - 2 * PROCESS_BYTES) // (4 * NODE_BYTES)))

    @property
    def _record_bytes(self) -> int:
        return 8 * self.packing.parts + 8

    @property
    def _window_bytes(self) -> int:
        """Keys twice, while they are sorted; counts; tokens, as they are stored and as they are used."""
        return 16 * self.packing.parts + 8 + 8
