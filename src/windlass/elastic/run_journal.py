"""What a leading coordinator leaves in the run's directory: records in the journal, and who takes part.

A store that fails for a while (a full disk) must not end the leadership: records that could not be written
go with the next ones.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.elastic.membership_state import MembershipState, WorkerState
from windlass.spec.errors import StoreFailed
from windlass.spec.protocol.elastic import MEMBERS
from windlass.spec.run import JOURNAL
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir, translate_os_errors

KEPT_RECORDS = 1000


class RunJournal:
    """The journal and members.json of a run, as one leader writes them."""

    def __init__(self, folder: Path, epoch: int, node: str) -> None:
        self._folder, self._epoch, self._node = folder, epoch, node
        self._journal = Journal(StoreDir(folder), JOURNAL)
        self._unwritten: list[dict[str, Any]] = []
        self._shown = ""

    def read(self) -> Iterator[dict[str, Any]]:
        return self._journal.read()

    def note(self, record: dict[str, Any]) -> bool:
        """Journal a record; return whether it is written.

        It is not forced to the disk, for which a recovery would have to wait: it outlives this process, and
        a machine that loses power loses the members with it.
        """
        self._unwritten = [*self._unwritten[-KEPT_RECORDS:], record]
        try:
            self._journal.append(*self._unwritten)
        except StoreFailed as error:
            sys.stderr.write(f"{error}\n")
            return False
        self._unwritten = []
        return True

    def show(self, roll: MembershipState) -> None:
        """Keep members.json as things stand, for tools."""
        shown = {
            "epoch": self._epoch,
            "coordinator": {"pid": os.getpid(), "node": self._node},
            "generation": roll.generation,
            "stage": roll.stage,
            "workers": [_entry(worker, roll) for worker in roll.workers.values()],
        }
        text = json.dumps(shown, indent=1)
        if text == self._shown:
            return
        try:
            self._replace(text)
            self._shown = text
        except StoreFailed as error:
            sys.stderr.write(f"{error}\n")

    def _replace(self, text: str) -> None:
        file = self._folder / MEMBERS
        part = file.with_name(f"{MEMBERS}.part-{os.getpid()}")
        with translate_os_errors(str(file)):
            part.write_text(text)
            part.replace(file)


def _entry(worker: WorkerState, roll: MembershipState) -> dict[str, Any]:
    rank = worker.rank if worker.worker in roll.members else None
    return {
        "worker": worker.worker,
        "node": worker.node,
        "pid": worker.pid,
        "rank": rank,
        "state": _state_of(worker, roll),
    }


def _state_of(worker: WorkerState, roll: MembershipState) -> str:
    if worker.outcome is not None:
        return worker.outcome
    if worker.dismissed:
        return "dismissed"
    if not worker.connected:
        return "expected" if worker.expected else "starting"
    if worker.worker in roll.members:
        return "lobby" if worker.ready else "member"
    return "spare"
