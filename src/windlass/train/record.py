"""Tells the world how a run goes: the journal, TensorBoard, and the parent process.

The journal is the record that counts; TensorBoard is a view of it; the parent gets every event to draw
its progress line from.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from windlass.spec.door import emit
from windlass.spec.run import JOURNAL, TENSORBOARD
from windlass.store.journal import Journal
from windlass.store.place import Place


class Record:
    """Where events of one run go."""

    def __init__(self, folder: Path, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._journal = Journal(Place(folder), JOURNAL)
        self._board = SummaryWriter(logdir=str(folder / TENSORBOARD), flush_secs=10)

    def tell(self, event: str, *, keep: bool = True, sync: bool = False, **facts: Any) -> None:
        """Pass an event on; `keep` also writes it to the journal."""
        body = {"event": event, "time": round(time.time(), 3), **facts}
        if not self._quiet or event == "warning":
            emit(body)
        if keep:
            self._journal.append(body, sync=sync)

    def plot(self, step: int, **scalars: float) -> None:
        for name, value in scalars.items():
            self._board.add_scalar(name.replace("__", "/"), value, step)

    def plot_text(self, step: int, name: str, text: str) -> None:
        self._board.add_text(name, text, step)

    def close(self) -> None:
        self._board.close()
