"""The protocol of what a server holds: the values behind `shard.ServerShard`.

ServerShard knows pushes, commits, versions and the log; ShardState knows what the numbers mean.
Implementations: network/network_shard.py, word2vec/word2vec_shard.py, hmm/hmm_shard.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from windlass.train.checkpoint.async_save import State
from windlass.train.server.peers import BranchGroup, StarGroup
from windlass.train.server.updates import ServerUpdate

ROWS = "#rows"
"""Suffix of an array that lists the rows of the table that another array holds."""

Share = Mapping[str, Tensor]
"""Arrays by name: whole slices, or rows of them."""
ServerGroup = StarGroup | BranchGroup


class ShardState(Protocol):
    """One server's share of the model."""

    stage: str

    @property
    def bytes(self) -> int:
        """Size of the values; a log much longer than this makes a checkpoint due."""

    @property
    def due(self) -> bool:
        """True if a checkpoint is due by the clock."""

    def load(self) -> tuple[State | None, list[str]]:
        """Load the newest intact checkpoint; also return why newer ones were skipped."""

    def values(self, rows: Share, ahead: int) -> dict[str, Tensor]:
        """Return copies of all values, of tables in `rows` only those rows."""

    def check(self, share: Share) -> None:
        """Raise BadInput for a push that does not fit."""

    def square(self, shares: Sequence[Share]) -> float:
        """Return the square of the norm of the sum of some pushes."""

    def apply(self, shares: Sequence[Share], update: ServerUpdate) -> dict[str, Any]:
        """Apply an update of some pushes; return facts for the primary."""

    def unsaved(self) -> Iterator[tuple[dict[str, Any], Share]]:
        """Yield state that a checkpoint does not hold, for the log that follows it."""

    def restore_unsaved(self, head: Mapping[str, Any], share: Share) -> None:
        """Restore such state from the log."""

    def missing_for(self, update: ServerUpdate) -> list[str]:
        """Return what this server lacks for an update."""

    def save(self, state: State, group: ServerGroup) -> Path:
        """Write a checkpoint together with all servers, or raise StoreFailed on all."""

    def close(self, within_s: float) -> None: ...
