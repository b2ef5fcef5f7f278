"""The checkpoints of a run over its whole life: memory, then local disk, then a store.

    begin -> (gradients of the next step) -> finish_copy -> (weights change) ... written -> end
                copied to memory                              moved to disk      committed, sent, verified

One object lives as long as the process. All ranks call `begin`, `end` and `restore` together. What comes
after `end` is done by threads of rank 0, and told: nothing that goes wrong with a checkpoint ends a run.
The first tier, for the loss of a rank, is peer_memory.py.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from windlass.parallel.param_shard import ParamShard
from windlass.parallel.process_group import ProcessGroup
from windlass.spec.errors import StoreFailed, WindlassError
from windlass.spec.job import Job
from windlass.spec.layout import Layout, Partition
from windlass.spec.run import CHECKPOINTS, STORE_FILE
from windlass.store.checkpoint_retention import retained
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir
from windlass.store.uploads import Outcome, Uploads
from windlass.train.checkpoint.async_save import (
    NOTHING,
    AsyncSave,
    SaveOptions,
    State,
    Tensors,
    committed,
    restore_newest,
)
from windlass.train.checkpoint.shard import Buffers, Extra
from windlass.train.checkpoint.verifier import CheckpointVerifier

Tell = Callable[..., None]
"""An event's name and facts, to the journal and whoever listens (train.record)."""


class CheckpointManager:
    """Writes, sends, checks and finds the checkpoints of one run."""

    def __init__(self, folder: Path, job: Job, tell: Tell) -> None:
        self._folder, self._asked, self._tell = folder, job.checkpoint, _unfailing(tell)
        self._keep = job.checkpoint.keep or job.train.checkpoint_keep
        self._buffers = Buffers()
        self._saving: AsyncSave | None = None
        self._uploads: Uploads | None = None
        self._checks = CheckpointVerifier(folder, job.checkpoint.verify_every, self._tell)
        self._idle = threading.Event()
        self._idle.set()
        self._began = self._stall_s = 0.0
        self._begun_step = -1
        self._due_from = time.monotonic()

    @property
    def saving(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._saving is not None

    @property
    def begun_step(self) -> int:
        """The step of the newest checkpoint that was begun here, -1 if none was.

        The loss of the step after it is what a checkpoint is held to when it is verified.
        """
        return self._begun_step

    @property
    def written(self) -> bool:
        """Whether one is under way and the bytes of this rank are on the disk: `end` would not wait."""
        return self._saving is not None and self._saving.written

    @property
    def stall_s(self) -> float:
        """How long this rank has waited for the checkpoint under way, or the last one."""
        return self._stall_s

    def due(self) -> bool:
        """Say whether [checkpoint] seconds have passed since the last one began. Rank 0's word counts."""
        seconds = self._asked.seconds
        return seconds is not None and time.monotonic() - self._due_from >= seconds

    def begin(
        self,
        state: State,
        holdings: Sequence[ParamShard],
        optimizer: torch.optim.Optimizer,
        *,
        crew: ProcessGroup,
        layout: Layout,
        cut: Partition,
        extra: Extra = NOTHING,
        replica: int | None = None,
        beside: bool = True,
    ) -> bool:
        """Start a checkpoint; return whether it could be, which is the same for all.

        With `beside` this returns before anything was copied: `finish_copy` must come before any of the
        tensors changes. One that is still under way is finished first, which takes as long as it takes: who
        has time asks `saving` before, and comes back at a later border.
        """
        if self._saving is not None:
            self.end()
        begin = time.perf_counter()
        self._idle.wait()
        self._began, self._due_from = begin, time.monotonic()
        saving = AsyncSave(
            self._folder / CHECKPOINTS, state, keep=self._keep, crew=crew, layout=layout, cut=cut,
            means=self._means,
        )  # fmt: skip
        try:
            saving.begin(
                holdings, optimizer, extra=extra, replica=replica, beside=beside, copy_later=beside
            )  # fmt: skip
        except StoreFailed as failure:
            self._tell_failed(state.step, failure)
            return False
        self._saving, self._stall_s = saving, time.perf_counter() - begin
        self._begun_step = state.step
        return True

    def finish_copy(self) -> None:
        """Wait until the tensors of the checkpoint under way may change; nothing waits if there is none."""
        if self._saving is not None:
            begin = time.perf_counter()
            self._saving.finish_copy()
            self._stall_s += time.perf_counter() - begin

    def end(self) -> None:
        """Hand the checkpoint over to be committed. Whether it was is told: `checkpoint`, or why not."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        begin = time.perf_counter()
        if saving.commits:
            self._idle.clear()
        try:
            saving.end(lambda found: self._after_commit(saving.step, found))
        except StoreFailed as failure:
            self._idle.set()
            self._tell_failed(saving.step, failure)
        self._stall_s += time.perf_counter() - begin

    def end_now(self) -> Path:
        """Wait until the checkpoint is committed, and return it; raise what went wrong."""
        assert self._saving is not None, "no checkpoint is under way"
        saving, self._saving = self._saving, None
        begin = time.perf_counter()
        path = saving.end()
        self._stall_s += time.perf_counter() - begin
        if saving.commits:
            self._after_commit(saving.step, path)
        return path

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint that is on the disk, -1 if there is none."""
        found = committed(self._folder / CHECKPOINTS)
        return step_of(found[-1].name) if found else -1

    def give_up(self) -> None:
        """Leave a checkpoint unfinished, for this rank alone: the company has broken up."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.give_up()

    def restore(
        self,
        holdings: Sequence[ParamShard],
        optimizer: torch.optim.Optimizer,
        *,
        crew: ProcessGroup,
        extra_kinds: Collection[str] = (),
        replica: int | None = None,
    ) -> tuple[State | None, Tensors, list[str]]:
        """Load the newest whole checkpoint from wherever it is; see `restore_newest`."""
        return restore_newest(
            self._folder / CHECKPOINTS, holdings, optimizer, crew=crew, extra_kinds=extra_kinds,
            replica=replica, spare=Copies.of(self._folder),
        )  # fmt: skip

    def close(self, within_s: float) -> None:
        """Give what is being committed, sent and verified some time to finish."""
        until = time.monotonic() + within_s
        self._idle.wait(within_s)
        if self._uploads is not None and not self._uploads.close(max(0.0, until - time.monotonic())):
            names = ", ".join(sorted(self._uploads.pending))
            self._tell("warning", message=f"{names}: not sent to {self._uploads.url} before the end")
        self._checks.close(max(0.0, until - time.monotonic()))

    @property
    def _means(self) -> SaveOptions:
        return SaveOptions(
            keep_every=self._asked.keep_every if self._asked.store is None else None,
            incremental=self._asked.incremental == "auto",
            spared=self._spared,
            buffers=self._buffers,
        )

    def _spared(self) -> list[str]:
        """Return those that are still being read."""
        return [*self._checks.looking_at, *(self._uploads.pending if self._uploads is not None else ())]

    def _after_commit(self, step: int, found: Path | WindlassError) -> None:
        """On rank 0: tell how it went, and pass the checkpoint on."""
        if isinstance(found, WindlassError):
            self._tell_failed(step, found)
        else:
            seconds = round(time.perf_counter() - self._began, 3)
            self._tell(
                "checkpoint", step=step, tier="local", seconds=seconds, stall_s=round(self._stall_s, 4),
                durable=True,
            )  # fmt: skip
            if self._asked.store is not None:
                self._send(found, self._asked.store)
            self._checks.offer(step)
        self._idle.set()

    def _send(self, path: Path, store: str) -> None:
        if self._uploads is None:
            try:
                url = settle_store(self._folder, store)
            except WindlassError as failure:
                self._tell_failed(step_of(path.name), failure, tier="store")
                return
            self._uploads = Uploads(url, retain=self._retain, tell=self._tell_upload)
        self._uploads.offer(path)

    def _retain(self, names: list[str]) -> list[str]:
        steps = {step_of(name): name for name in names if _is_step(name)}
        kept = retained(steps, keep=self._asked.store_keep, keep_every=self._asked.keep_every)
        return [steps[step] for step in kept]

    def _tell_upload(self, name: str, outcome: Outcome, facts: dict[str, Any]) -> None:
        if outcome == "sent":
            with suppress(WindlassError):  # the next one sent will be noted
                note_sent(self._folder, name)
            self._tell("checkpoint", step=step_of(name), tier="store", **facts)
        else:
            self._tell("checkpoint_failed", step=step_of(name), tier="store", **facts)

    def _tell_failed(self, step: int, failure: WindlassError, tier: str = "local") -> None:
        self._tell("checkpoint_failed", step=step, tier=tier, message=failure.message)


class Copies:
    """The copies of a run's checkpoints in a store."""

    def __init__(self, url: str, sent: str) -> None:
        self._url, self._sent = url, sent

    @classmethod
    def of(cls, folder: Path) -> Copies | None:
        """Return those of a run, None if it never sent any."""
        told = _read_store(folder)
        return cls(told["url"], told.get("sent", "")) if "url" in told else None

    def ahead_of(self, name: str) -> bool:
        return self._sent > name

    def names(self) -> list[str]:
        return [name for name in self._mirror.names() if _is_step(name)]

    def fetch(self, name: str, target: Path) -> None:
        self._mirror.fetch(name, target)

    @cached_property
    def _mirror(self) -> Mirror:
        """Opened when it is needed: the library of a store takes a second to load."""
        return Mirror(StoreDir(self._url))


def _is_step(name: str) -> bool:
    return name.startswith("step-") and name.removeprefix("step-").isdigit()


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def settle_store(folder: Path, store: str) -> str:
    """Return the URL of a run's copies in a store, drawn the first time.

    It is a place of its own even if another home has a run of the same name and number.
    """
    base = f"{store.rstrip('/')}/{folder.parent.name}/{folder.name}-"
    told = _read_store(folder)
    if str(told.get("url", "")).startswith(base):
        return str(told["url"])
    url = base + secrets.token_hex(4)
    StoreDir(folder).write(STORE_FILE, json.dumps({"url": url}).encode())
    return url


def note_sent(folder: Path, name: str) -> None:
    """Remember the newest copy, so that a reader knows without asking whether the store has a newer one."""
    told = _read_store(folder)
    StoreDir(folder).write(STORE_FILE, json.dumps({**told, "sent": name}).encode())


def _read_store(folder: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((folder / STORE_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return told


def _unfailing(tell: Tell) -> Tell:
    """A journal on a full disk must not end the thread that would say so."""

    def told(*args: Any, **facts: Any) -> None:
        with suppress(WindlassError, OSError):
            tell(*args, **facts)

    return told
