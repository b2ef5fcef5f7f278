"""What a server holds, whatever is learnt: the side of `shard.Shard` that knows numbers.

A shard knows pushes, commits, versions and the log; its part knows what the numbers mean. There is one for
each kind of course: network/part.py, vectors/part.py, hidden/part.py.
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
"""Ends the name of an array that says which rows of a table another array holds."""

Share = Mapping[str, Tensor]
"""Numbers by name: whole boxes, or rows of them."""
ServerCrew = StarGroup | BranchGroup


class ShardState(Protocol):
    """One server's share of what is learnt."""

    stage: str

    @property
    def bytes(self) -> int:
        """Of all that it holds; a log much longer than this is due to be replaced."""

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint, by the clock."""

    def load(self) -> tuple[State | None, list[str]]:
        """Take up the newest whole checkpoint; say why others were passed over."""

    def values(self, rows: Share, ahead: int) -> dict[str, Tensor]:
        """Return copies of everything, of tables in `rows` only those rows."""

    def check(self, share: Share) -> None:
        """Refuse with BadInput what cannot be added to what is here."""

    def square(self, shares: Sequence[Share]) -> float:
        """Return the square of the norm of the sum of some pushes."""

    def apply(self, shares: Sequence[Share], update: ServerUpdate) -> dict[str, Any]:
        """Make an update of some pushes; return what whoever commits it shall know."""

    def keepsakes(self) -> Iterator[tuple[dict[str, Any], Share]]:
        """Yield what a checkpoint does not hold, for the log that follows it."""

    def take_up(self, head: Mapping[str, Any], share: Share) -> None:
        """Take up a keepsake from the log."""

    def lacks(self, update: ServerUpdate) -> list[str]:
        """Return what this part would need for an update and has not."""

    def save(self, state: State, crew: ServerCrew) -> Path:
        """Write a checkpoint together with all servers, or raise StoreFailed on all."""

    def close(self, within_s: float) -> None: ...
