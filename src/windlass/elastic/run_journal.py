"""What the leader writes to the run's directory: journal records, and the members (members.json).

A store that fails for a while (a full disk) must not end the leadership: records that could not be written
are written with the next ones.
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
        self._written = ""

    def read(self) -> Iterator[dict[str, Any]]:
        return self._journal.read()

    def append(self, record: dict[str, Any]) -> bool:
        """Journal a record; return whether it is written.

        It is not synced to disk, which would delay a recovery: the record survives the end of this
        process, and a machine that loses power loses its members anyway.
        """
        self._unwritten = [*self._unwritten[-KEPT_RECORDS:], record]
        try:
            self._journal.append(*self._unwritten)
        except StoreFailed as error:
            sys.stderr.write(f"{error}\n")
            return False
        self._unwritten = []
        return True

    def write_members(self, state: MembershipState) -> None:
        """Write members.json, for tools, if it changed."""
        members = {
            "epoch": self._epoch,
            "coordinator": {"pid": os.getpid(), "node": self._node},
            "generation": state.generation,
            "stage": state.stage,
            "workers": [_entry(worker, state) for worker in state.workers.values()],
        }
        text = json.dumps(members, indent=1)
        if text == self._written:
            return
        try:
            self._replace(text)
            self._written = text
        except StoreFailed as error:
            sys.stderr.write(f"{error}\n")

    def _replace(self, text: str) -> None:
        file = self._folder / MEMBERS
        part = file.with_name(f"{MEMBERS}.part-{os.getpid()}")
        with translate_os_errors(str(file)):
            part.write_text(text)
            part.replace(file)


def _entry(worker: WorkerState, state: MembershipState) -> dict[str, Any]:
    rank = worker.rank if worker.worker in state.members else None
    return {
        "worker": worker.worker,
        "node": worker.node,
        "pid": worker.pid,
        "rank": rank,
        "state": _state_of(worker, state),
    }


def _state_of(worker: WorkerState, state: MembershipState) -> str:
    if worker.outcome is not None:
        return worker.outcome
    if worker.dismissed:
        return "dismissed"
    if not worker.connected:
        return "expected" if worker.expected else "starting"
    if worker.worker in state.members:
        return "waiting" if worker.ready else "member"
    return "spare"
