"""Manages the checkpoints of a run: local disk, then a store.

    save -> (gradients of the next step) -> finish_copy -> (weights change) ... written -> poll
               copied to memory                              moved to disk       committed, sent, verified

One checkpointer lives as long as the process. All ranks call `save`, `poll` and `load` together. Threads of
rank 0 do what follows `poll` and log the outcome: a failed checkpoint does not end the run. The first tier,
for the loss of a rank, is peer_memory.py.
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

EmitEvent = Callable[..., None]
"""Logs an event with its name and facts (EventLog.emit)."""


def _do_nothing() -> None: ...


class Checkpointer:
    """Writes, uploads, verifies and restores the checkpoints of one run."""

    def __init__(
        self, folder: Path, job: Job, emit: EmitEvent, before_commit: Callable[[], None] = _do_nothing
    ) -> None:
        """Prepare for the checkpoints of a run; `before_commit` is called before each commit."""
        self._folder, self._config, self._emit = folder, job.checkpoint, _unfailing(emit)
        self._before_commit = before_commit
        self._keep = job.checkpoint.keep or job.train.checkpoint_keep
        self._buffers = Buffers()
        self._saving: AsyncSave | None = None
        self._uploads: Uploads | None = None
        self._checks = CheckpointVerifier(folder, job.checkpoint.verify_every, self._emit)
        self._idle = threading.Event()
        self._idle.set()
        self._began = self._stall_s = 0.0
        self._begun_step = -1
        self._due_from = time.monotonic()

    @property
    def saving(self) -> bool:
        """True if a checkpoint is in progress."""
        return self._saving is not None

    @property
    def begun_step(self) -> int:
        """The step of the newest checkpoint that this process has begun, -1 if none.

        Verification compares a checkpoint with the loss of the step after it.
        """
        return self._begun_step

    @property
    def written(self) -> bool:
        """True if a checkpoint is in progress and this rank's shard is on disk."""
        return self._saving is not None and self._saving.written

    @property
    def stall_s(self) -> float:
        """Seconds that this rank has waited for the checkpoint in progress, or the last one."""
        return self._stall_s

    def due(self) -> bool:
        """Return True if [checkpoint] seconds have passed since the last one began. Rank 0's answer
        counts."""
        seconds = self._config.seconds
        return seconds is not None and time.monotonic() - self._due_from >= seconds

    def save(
        self,
        state: State,
        holdings: Sequence[ParamShard],
        optimizer: torch.optim.Optimizer,
        *,
        group: ProcessGroup,
        layout: Layout,
        cut: Partition,
        extra: Extra = NOTHING,
        replica: int | None = None,
        wait: bool = False,
    ) -> Path:
        """Write a checkpoint and return its path; with `wait`, when it is committed, or raise its error.

        Without `wait` this returns before anything was copied: the caller must call `finish_copy` before any
        of the tensors changes, and `poll` when all ranks have written. A failure is logged, not raised.

        A checkpoint in progress is finished first, which may take long.
        """
        self.poll()
        begin = time.perf_counter()
        self._idle.wait()
        self._began, self._due_from = begin, time.monotonic()
        saving = AsyncSave(
            self._folder / CHECKPOINTS, state, keep=self._keep, group=group, layout=layout, cut=cut,
            options=self._options,
        )  # fmt: skip
        try:
            saving.start(
                holdings, optimizer, extra=extra, replica=replica, background=not wait, copy_later=not wait
            )
        except StoreFailed as failure:
            self._emit_failed(state.step, failure)
            if wait:
                raise
        else:
            self._saving, self._stall_s = saving, time.perf_counter() - begin
            self._begun_step = state.step
            if wait:
                self._commit_now(saving)
        return saving.target

    def finish_copy(self) -> None:
        """Wait until the tensors of the checkpoint in progress, if any, may change."""
        if self._saving is not None:
            begin = time.perf_counter()
            self._saving.finish_copy()
            self._stall_s += time.perf_counter() - begin

    def poll(self) -> None:
        """Commit the checkpoint in progress, if there is one.

        All ranks call this when all are `written`; if some are not, it waits for them. The commit itself runs
        in the background, and its outcome is logged: `checkpoint` or `checkpoint_failed`.
        """
        if self._saving is None:
            return
        begin = time.perf_counter()
        self._before_commit()
        saving, self._saving = self._saving, None
        if saving.commits:
            self._idle.clear()
        try:
            saving.commit(lambda found: self._after_commit(saving.step, found))
        except StoreFailed as failure:
            self._idle.set()
            self._emit_failed(saving.step, failure)
        self._stall_s += time.perf_counter() - begin

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint on disk, -1 if there is none."""
        found = committed(self._folder / CHECKPOINTS)
        return step_of(found[-1].name) if found else -1

    def give_up(self) -> None:
        """Leave a checkpoint unfinished, on this rank alone: the process group has broken."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.give_up()

    def load(
        self,
        holdings: Sequence[ParamShard],
        optimizer: torch.optim.Optimizer,
        *,
        group: ProcessGroup,
        extra_kinds: Collection[str] = (),
        replica: int | None = None,
    ) -> tuple[State | None, Tensors, list[str]]:
        """Load the newest intact checkpoint; see `restore_newest`."""
        return restore_newest(
            self._folder / CHECKPOINTS, holdings, optimizer, group=group, extra_kinds=extra_kinds,
            replica=replica, remote=Copies.of(self._folder),
        )  # fmt: skip

    def close(self, within_s: float) -> None:
        """Give commits, uploads and verification up to `within_s` to finish."""
        until = time.monotonic() + within_s
        self._idle.wait(within_s)
        if self._uploads is not None and not self._uploads.close(max(0.0, until - time.monotonic())):
            names = ", ".join(sorted(self._uploads.pending))
            self._emit("warning", message=f"{names}: not uploaded to {self._uploads.url} before the end")
        self._checks.close(max(0.0, until - time.monotonic()))

    def _commit_now(self, saving: AsyncSave) -> None:
        """Wait until a checkpoint is committed, or raise its error."""
        begin = time.perf_counter()
        self._before_commit()
        self._saving = None
        path = saving.commit()
        self._stall_s += time.perf_counter() - begin
        if saving.commits:
            self._after_commit(saving.step, path)

    @property
    def _options(self) -> SaveOptions:
        return SaveOptions(
            keep_every=self._config.keep_every if self._config.store is None else None,
            incremental=self._config.incremental == "auto",
            protected=self._protected,
            buffers=self._buffers,
        )

    def _protected(self) -> list[str]:
        """Return the checkpoints that are still being read."""
        return [*self._checks.in_progress, *(self._uploads.pending if self._uploads is not None else ())]

    def _after_commit(self, step: int, found: Path | WindlassError) -> None:
        """On rank 0: log the outcome, upload the checkpoint and offer it for verification."""
        if isinstance(found, WindlassError):
            self._emit_failed(step, found)
        else:
            seconds = round(time.perf_counter() - self._began, 3)
            self._emit(
                "checkpoint", step=step, tier="local", seconds=seconds, stall_s=round(self._stall_s, 4),
                durable=True,
            )  # fmt: skip
            if self._config.store is not None:
                self._send(found, self._config.store)
            self._checks.offer(step)
        self._idle.set()

    def _send(self, path: Path, store: str) -> None:
        if self._uploads is None:
            try:
                url = settle_store(self._folder, store)
            except WindlassError as failure:
                self._emit_failed(step_of(path.name), failure, tier="store")
                return
            self._uploads = Uploads(url, retain=self._retain, tell=self._emit_upload)
        self._uploads.offer(path)

    def _retain(self, names: list[str]) -> list[str]:
        steps = {step_of(name): name for name in names if _is_step(name)}
        kept = retained(steps, keep=self._config.store_keep, keep_every=self._config.keep_every)
        return [steps[step] for step in kept]

    def _emit_upload(self, name: str, outcome: Outcome, facts: dict[str, Any]) -> None:
        if outcome == "sent":
            with suppress(WindlassError):  # the next upload will be noted
                note_sent(self._folder, name)
            self._emit("checkpoint", step=step_of(name), tier="store", **facts)
        else:
            self._emit("checkpoint_failed", step=step_of(name), tier="store", **facts)

    def _emit_failed(self, step: int, failure: WindlassError, tier: str = "local") -> None:
        self._emit("checkpoint_failed", step=step, tier=tier, message=failure.message)


class Copies:
    """The copies of a run's checkpoints in a store."""

    def __init__(self, url: str, sent: str) -> None:
        self._url, self._sent = url, sent

    @classmethod
    def of(cls, folder: Path) -> Copies | None:
        """Return the copies of a run, None if it has uploaded none."""
        stored = _read_store(folder)
        return cls(stored["url"], stored.get("sent", "")) if "url" in stored else None

    def ahead_of(self, name: str) -> bool:
        return self._sent > name

    def names(self) -> list[str]:
        return [name for name in self._mirror.names() if _is_step(name)]

    def fetch(self, name: str, target: Path) -> None:
        self._mirror.fetch(name, target)

    @cached_property
    def _mirror(self) -> Mirror:
        """Opened on demand: the client library of a store takes a second to load."""
        return Mirror(StoreDir(self._url))


def _is_step(name: str) -> bool:
    return name.startswith("step-") and name.removeprefix("step-").isdigit()


def step_of(name: str) -> int:
    return int(name.removeprefix("step-"))


def settle_store(folder: Path, store: str) -> str:
    """Return the URL of a run's copies in a store, chosen at random the first time.

    It is unique even if another home has a run of the same name and number.
    """
    base = f"{store.rstrip('/')}/{folder.parent.name}/{folder.name}-"
    stored = _read_store(folder)
    if str(stored.get("url", "")).startswith(base):
        return str(stored["url"])
    url = base + secrets.token_hex(4)
    StoreDir(folder).write(STORE_FILE, json.dumps({"url": url}).encode())
    return url


def note_sent(folder: Path, name: str) -> None:
    """Record the newest copy, so that a reader knows without contacting the store whether it has a newer
    one."""
    stored = _read_store(folder)
    StoreDir(folder).write(STORE_FILE, json.dumps({**stored, "sent": name}).encode())


def _read_store(folder: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads((folder / STORE_FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return stored


def _unfailing(emit: EmitEvent) -> EmitEvent:
    """Return `emit` without errors: a journal on a full disk must not end the thread."""

    def emit_safely(*args: Any, **facts: Any) -> None:
        with suppress(WindlassError, OSError):
            emit(*args, **facts)

    return emit_safely
