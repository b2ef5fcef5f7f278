"""Writes the events of a run to the journal, to TensorBoard and to the parent process.

The journal is authoritative; TensorBoard is a view of it; the parent process draws its progress line from
the events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from windlass.spec.protocol.entrypoint import emit
from windlass.spec.protocol.progress import Progress
from windlass.spec.run import JOURNAL, TENSORBOARD
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir


class EventLog:
    """The events of one run. Only rank 0 writes them; other ranks forward nothing but warnings."""

    def __init__(
        self,
        folder: Path,
        *,
        quiet: bool = False,
        rank: int = 0,
        forward: Callable[[dict[str, Any]], None] = emit,
    ) -> None:
        self._folder, self._forward = folder, forward
        self._quiet_always = quiet
        self._journal = Journal(StoreDir(folder), JOURNAL)
        self._board: SummaryWriter | None = None
        self.take_rank(rank)

    def take_rank(self, rank: int) -> None:
        """Act as the log of another rank from here on."""
        self._quiet = self._quiet_always or rank > 0
        self.keeps = rank == 0
        """True if this process writes the journal."""

    def emit(
        self, event: str, *, keep: bool = True, durable: bool = False, quiet: bool = False, **facts: Any
    ) -> None:
        """Forward an event; `keep` also writes it to the journal, `durable` waits for the disk.

        A `quiet` event goes to the journal only.
        """
        body = {"event": event, "time": round(time.time(), 3), **facts}
        if not quiet and (not self._quiet or event == "warning"):
            self._emit(body)
        if keep and self.keeps:
            self._journal.append(body, sync=durable)

    def last(self, *events: str) -> dict[str, Any]:
        """Return the newest record with one of these events, {} if there is none."""
        return self._journal.last(*events) or {}

    def _emit(self, body: dict[str, Any]) -> None:
        """A parent that has exited must not keep a run from saving its state."""
        try:
            self._forward(body)
        except BrokenPipeError:
            self._quiet = True

    def plot(self, step: int, **scalars: float) -> None:
        for name, value in scalars.items() if self.keeps else ():
            self._writer.add_scalar(name.replace("__", "/"), value, step)

    def plot_text(self, step: int, name: str, text: str) -> None:
        if self.keeps:
            self._writer.add_text(name, text, step)

    def emit_progress(self, p: Progress) -> None:
        self.emit("progress", keep=False, stage=p.stage, done=p.done, total=p.total, unit=p.unit)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
            self._board = None

    @property
    def _writer(self) -> SummaryWriter:
        if self._board is None:
            self._board = SummaryWriter(logdir=str(self._folder / TENSORBOARD), flush_secs=10)
        return self._board
