"""Settings of a build: the model, and how much is processed at a time to stay within the memory limit."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.spec.errors import BadInput
from windlass.spec.units import format_bytes
from windlass.train.ngram.blocks import Packing

PROCESS_BYTES = 64 << 20
"""Memory of a process before it counts anything: the interpreter and numpy."""
MIN_BLOCK, MAX_BLOCK = 1 << 16, 1 << 23
SHARE = 1 << 20
"""Counting this many windows takes less time than starting a process for them."""
MIN_MEMORY = 3 * PROCESS_BYTES
NODE_BYTES = 160
"""Memory per n-gram in process while links and estimates are computed."""


@dataclass(frozen=True)
class CountSettings:
    """The model to build, and the resources to build it with."""

    packing: Packing
    thresholds: tuple[int, ...]
    memory: int
    processes: int
    block: int | None = None
    """Windows in one block; None for as many as the memory allows."""

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
        """Number of windows in process while runs are merged into the tree."""
        free = self.memory - 2 * PROCESS_BYTES
        return max(MIN_BLOCK, free // (3 * self._record_bytes + 40 + 14 * self.packing.order))

    @property
    def chunk(self) -> int:
        """Number of n-grams in process while links and estimates are computed."""
        return min(1 << 20, max(1 << 12, (self.memory - 2 * PROCESS_BYTES) // (4 * NODE_BYTES)))

    @property
    def _record_bytes(self) -> int:
        return 8 * self.packing.parts + 8

    @property
    def _window_bytes(self) -> int:
        """Keys twice, while they are sorted; counts; tokens, as they are stored and as they are used."""
        return 16 * self.packing.parts + 8 + 8
