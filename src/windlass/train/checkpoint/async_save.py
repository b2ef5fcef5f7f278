"""Saves and restores everything that the next step depends on.

A checkpoint is a directory with a manifest: weights, both Adam moments, and the run's progress. Every process
writes its shard and reads what it needs of all shards, so any number of processes in any layout can resume
from it. The position in the data is `samples`, one integer. The format is docs/formats/checkpoint.md.

All ranks of the group call these functions together. A failure on one rank raises the same error on all.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from windlass.parallel.param_shard import ParamShard
from windlass.parallel.process_group import ProcessGroup
from windlass.spec.errors import Damaged, StoreFailed, WindlassError
from windlass.spec.layout import Layout, Partition
from windlass.store.checkpoint_retention import retained
from windlass.store.manifest import MANIFEST, Digests, DirectoryWriter, FileRecord, load_manifest, verify
from windlass.store.store_dir import StoreDir
from windlass.store.thread_priority import lower_priority
from windlass.train.checkpoint.reader import CheckpointReader
from windlass.train.checkpoint.shard import (
    MOMENTS,
    Buffers,
    CheckpointShard,
    Extra,
    claims_of,
    divide,
    take_part,
)
from windlass.train.collective_errors import raise_on_all_ranks

STATE, LAYOUT = "state.json", "layout.json"
NOTHING: Extra = MappingProxyType({})
LINK_BYTES = 1 << 20
"""Smaller files are written again: two copies are safer than two hard links to one, and cost nothing."""
HINT = "the previous checkpoint is intact; free some space and continue with --resume"

Tensors = dict[str, dict[str, Tensor]]
"""Restored extras: by kind, then by the weight's name."""


@dataclass(frozen=True)
class State:
    """The progress of a run."""

    step: int
    samples: int
    train_s: float


@dataclass(frozen=True)
class SaveOptions:
    """How a checkpoint is written, and which earlier ones are kept."""

    keep_every: int | None = None
    """Also keep the first checkpoint of every `keep_every` steps."""
    incremental: bool = True
    """Link files equal to those of the previous checkpoint instead of writing them."""
    protected: Callable[[], Collection[str]] = tuple
    """Returns the old checkpoints that must stay because they are being read."""
    buffers: Buffers | None = None
    """Memory to copy into, kept from one checkpoint to the next."""
    place: Callable[[Path], StoreDir] = StoreDir


class AsyncSave:
    """A checkpoint in progress. It exists once its manifest does; then the oldest beyond `keep` are deleted.

    All ranks call `start` and `commit` together. Between them a thread writes this rank's shard to disk, from
    a copy if training continues meanwhile; `written` is True when it is done.
    """

    def __init__(
        self,
        folder: Path,
        state: State,
        *,
        keep: int,
        group: ProcessGroup,
        layout: Layout,
        cut: Partition,
        options: SaveOptions | None = None,
    ) -> None:
        self._folder, self._keep, self._group, self._rank = folder, keep, group, group.rank
        self._state, self._layout, self._cut = state, layout, cut
        self._options = options or SaveOptions()
        self.target = folder / f"step-{state.step:08d}"
        """Where it will be."""
        self._trouble = f"{self.target}: the checkpoint could not be written"
        self._failure: WindlassError | OSError | MemoryError | None = None
        self._copied, self._given_up = threading.Event(), threading.Event()

    def start(
        self,
        holdings: Sequence[ParamShard],
        optimizer: torch.optim.Optimizer,
        *,
        extra: Extra = NOTHING,
        replica: int | None = None,
        background: bool = False,
        copy_later: bool = False,
    ) -> None:
        """Start to write; with `background`, later changes of the tensors do not affect the checkpoint.

        `extra` holds more tensors by kind and by weight, shaped as the holdings. With a `replica`, moments
        and extras are this replica's own, and every replica's are saved; weights are those of replica 0.
        With `copy_later` too, the copy is made while the next gradients are computed: the caller calls
        `finish_copy` before it changes any of these tensors.
        """
        assert not MOMENTS.keys() & extra.keys(), "an extra kind has the name of a moment"
        with raise_on_all_ranks(self._group, self._trouble, HINT):
            _open(self._options.place(self.target), self._group)
        keys = divide(self._group.all_gather_json(claims_of(holdings, replica)))[self._rank]
        part = take_part(holdings, optimizer, extra, keys=keys, replica=replica)
        self._writer = DirectoryWriter(self._options.place(self.target), join=True)
        if background and not copy_later:
            part = part.copied(self._options.buffers)
        self._thread = threading.Thread(
            target=self._write, args=(part, background, copy_later), name="checkpoint", daemon=True
        )
        self._thread.start()

    @property
    def step(self) -> int:
        return self._state.step

    @property
    def written(self) -> bool:
        """True if this rank's shard is on disk, or has failed to be written."""
        return not self._thread.is_alive()

    @property
    def commits(self) -> bool:
        """True if this rank commits."""
        return self._rank == 0

    def finish_copy(self) -> None:
        """Wait until the tensors may change again."""
        self._copied.wait()

    def give_up(self) -> None:
        """Leave it unfinished, on this rank alone: the process group has broken."""
        self._given_up.set()
        self._thread.join()

    def commit(self, done: Callable[[Path | WindlassError], None] | None = None) -> Path:
        """Wait for the shards of all ranks and commit, or raise the error of any rank.

        With `done`, a thread of rank 0 commits in the background and calls `done` with the path or the
        failure.
        """
        self._thread.join()
        try:
            with raise_on_all_ranks(self._group, self._trouble, HINT):
                if self._failure is not None:
                    raise self._failure
            _include(self._writer, self._group)
            if done is None:
                with raise_on_all_ranks(self._group, self._trouble, HINT):
                    self._write_manifest()
        except StoreFailed:
            self._discard()
            raise
        if done is None:
            with raise_on_all_ranks(self._group, f"{self._folder}: old checkpoints could not be removed"):
                self._forget()
        elif self._rank == 0:
            threading.Thread(
                target=self._commit_in_background, args=(done,), name="commit", daemon=True
            ).start()
        return self.target

    def _write(self, part: CheckpointShard, background: bool, copy: bool) -> None:
        try:
            if copy:
                part = part.copied(self._options.buffers)
            self._copied.set()
            if background:
                lower_priority()
            known = self._known() if self._options.incremental else {}
            for name, file in part.files(self._rank).items():
                if self._given_up.is_set():
                    return
                _write_file(file, name, self._writer, known)
        except (WindlassError, OSError, MemoryError) as error:
            self._failure = error
        finally:
            self._copied.set()

    def _known(self) -> dict[FileRecord, Path]:
        """Return the files of the previous checkpoint, by digest and size."""
        before = [path for path in committed(self._folder) if path.name < self.target.name]
        manifest = load_manifest(StoreDir(before[-1])) if before else None
        return {record: before[-1] / name for name, record in manifest.files.items()} if manifest else {}

    def _write_manifest(self) -> None:
        if self._rank != 0:
            return
        writer = self._writer
        for name in writer.records:
            if not writer.place.exists(name):
                where = self.target
                raise StoreFailed(
                    f"{name} is not visible in {where}; all nodes must mount the same directory"
                )
        writer.write(STATE, json.dumps(asdict(self._state)).encode())
        facts = {"layout": self._layout.model_dump(mode="json"), "cut": self._cut.model_dump(mode="json")}
        writer.write(LAYOUT, (json.dumps(facts, indent=1) + "\n").encode())
        writer.commit({"kind": "checkpoint", "step": self._state.step})

    def _commit_in_background(self, done: Callable[[Path | WindlassError], None]) -> None:
        try:
            self._write_manifest()
            self._forget()
        except (WindlassError, OSError) as error:
            self._discard()
            done(StoreFailed(f"{self._trouble}: {getattr(error, 'message', error)}", hint=HINT))
        else:
            done(self.target)

    def _discard(self) -> None:
        """Remove the files of a failed checkpoint."""
        if self._rank == 0:
            with suppress(WindlassError):  # the error that led here says more
                StoreDir(self.target).remove()

    def _forget(self) -> None:
        """Remove older checkpoints that are not retained, and debris.

        Later steps are left alone: the run was rolled back and will reach them again.
        """
        if self._rank != 0:
            return
        here = {_step_of(path): path for path in committed(self._folder) if path.name <= self.target.name}
        stays = retained(here, keep=self._keep, keep_every=self._options.keep_every)
        names = {here[step].name for step in stays} | set(self._options.protected())
        for path in _started(self._folder):
            if path.name < self.target.name and path.name not in names:
                self._options.place(path).remove()


class RemoteCheckpoints(Protocol):
    """Copies of checkpoints outside of the run's own directory."""

    def ahead_of(self, name: str) -> bool:
        """Return True if a newer checkpoint than this was uploaded; does not contact the store."""

    def names(self) -> list[str]:
        """List what is there."""

    def fetch(self, name: str, target: Path) -> None:
        """Download a complete checkpoint."""


def restore_newest(
    folder: Path,
    holdings: Sequence[ParamShard],
    optimizer: torch.optim.Optimizer,
    *,
    group: ProcessGroup,
    extra_kinds: Collection[str] = (),
    replica: int | None = None,
    remote: RemoteCheckpoints | None = None,
) -> tuple[State | None, Tensors, list[str]]:
    """Load the newest intact checkpoint of any layout, from the local directory or from a remote copy.

    Also return the requested extras that it has, and why newer checkpoints were skipped.
    """
    skipped: list[str] = []
    candidates = _candidates(folder, remote, skipped) if group.rank == 0 else iter(())
    while (name := group.all_gather_json(next(candidates, None))[0]) is not None:
        path = folder / name
        with raise_on_all_ranks(group, f"{path}: the checkpoint could not be read"):
            reason = _reason_against(path, holdings, extra_kinds, replica, group)
        reasons = [said for said in group.all_gather_json(reason) if said is not None]
        if reasons:
            skipped.append(reasons[0])
            continue
        with raise_on_all_ranks(group, f"{path}: the checkpoint could not be read"):
            state = State(**json.loads((path / STATE).read_bytes()))
            extra = _load(CheckpointReader(path), holdings, optimizer, state, extra_kinds, replica)
        return state, extra, skipped
    return None, {}, skipped


def _candidates(folder: Path, remote: RemoteCheckpoints | None, troubles: list[str]) -> Iterator[str]:
    """Yield the local checkpoints, newest first, then download remote copies.

    The store comes first only if it has a newer checkpoint than any local one: it may be slow or unavailable,
    and an older local checkpoint costs just a few steps. All ranks follow rank 0.
    """
    here = [path.name for path in reversed(committed(folder))]
    behind = remote is not None and (not here or remote.ahead_of(here[0]))
    tried = [] if behind else here
    yield from tried
    elsewhere = _elsewhere(remote, troubles)
    for name in sorted({*here, *elsewhere}, reverse=True):
        if name in here and name not in tried:
            yield name
        if remote is not None and name in elsewhere and _fetched(remote, name, folder, troubles):
            yield name


def _elsewhere(remote: RemoteCheckpoints | None, troubles: list[str]) -> list[str]:
    try:
        return remote.names() if remote is not None else []
    except WindlassError as failure:
        troubles.append(failure.message)
        return []


def _fetched(remote: RemoteCheckpoints, name: str, folder: Path, troubles: list[str]) -> bool:
    try:
        StoreDir(folder / name).remove()
        remote.fetch(name, folder / name)
    except WindlassError as failure:
        troubles.append(failure.message)
        return False
    return True


def committed(folder: Path) -> list[Path]:
    """List the finished checkpoints, oldest first, without the debris of a crashed writer."""
    return [path for path in _started(folder) if (path / MANIFEST).exists()]


def _started(folder: Path) -> list[Path]:
    found = folder.glob("step-*") if folder.is_dir() else ()
    return sorted(path for path in found if path.name.removeprefix("step-").isdigit())


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _open(place: StoreDir, group: ProcessGroup) -> None:
    """Remove an earlier checkpoint of this step; its shards may be those of another layout."""
    if group.rank == 0:
        DirectoryWriter(place)
        place.remove()


def _write_file(
    part: CheckpointShard, name: str, writer: DirectoryWriter, known: Mapping[FileRecord, Path]
) -> None:
    """Write a file, or hard-link one with the same content.

    The digest comes first and costs nothing extra: the bytes are in memory and are hashed once either way.
    """
    digests = Digests()
    part.write(digests, name)
    record = digests.records[name]
    if record.bytes >= LINK_BYTES and record in known and writer.link(name, known[record], record):
        return
    part.write(writer.place, name)
    writer.include({name: record})


def _include(writer: DirectoryWriter, group: ProcessGroup) -> None:
    for records in group.all_gather_json({name: asdict(record) for name, record in writer.records.items()}):
        writer.include({name: FileRecord(**record) for name, record in records.items()})


def _reason_against(
    path: Path,
    holdings: Sequence[ParamShard],
    kinds: Collection[str],
    replica: int | None,
    group: ProcessGroup,
) -> str | None:
    """Return why a checkpoint cannot be used, or None. The files to verify are divided among all ranks."""
    try:
        manifest = load_manifest(StoreDir(path))
        files = sorted(manifest.files) if manifest is not None else []
        verify(StoreDir(path), manifest, files[group.rank :: group.world])
        source = CheckpointReader(path)
        for holding in holdings:
            for kind in (None, *_kinds(source, holding, kinds)):
                source.check(holding.name, holding.shape, holding.box, kind, replica)
    except Damaged as damage:
        return damage.message
    return None


def _kinds(source: CheckpointReader, holding: ParamShard, kinds: Collection[str]) -> list[str]:
    """List the kinds of state that a checkpoint has for a weight, among those requested."""
    return [kind for kind in (*MOMENTS, *kinds) if source.has(holding.name, kind)]


def _load(
    source: CheckpointReader,
    holdings: Sequence[ParamShard],
    optimizer: torch.optim.Optimizer,
    state: State,
    kinds: Collection[str],
    replica: int | None,
) -> Tensors:
    """Load weights and moments; return the extras. Only slices of these holdings are read."""
    extra: Tensors = {}
    for holding in holdings:
        source.read_into(holding.tensor, holding.name, holding.box)
        kept = {
            kind: source.read(holding.name, holding.box, kind, replica).to(holding.tensor.device)
            for kind in _kinds(source, holding, kinds)
        }
        moments = {theirs: kept.pop(ours) for ours, theirs in MOMENTS.items() if ours in kept}
        # Fused AdamW counts its steps in a tensor on the CPU.
        counted = {"step": torch.tensor(float(state.step)), **moments} if moments else {}
        optimizer.state[holding.tensor] = counted
        for kind, tensor in kept.items():
            extra.setdefault(kind, {})[holding.name] = tensor
    return extra
