"""Saves and restores everything that the next step depends on.

A checkpoint is a directory with a manifest: weights, both Adam moments, and how far the run has come.
Every process writes its part and reads what it needs of all parts, so any number of processes in any layout
can go on from it. The position in the data is `samples`, one integer. The format is
docs/formats/checkpoint.md.

Whoever is of the crew calls these functions together. What fails for one fails for all, with the same error.
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
"""Smaller files are written again: two copies are safer than two names for one, and cost nothing."""
HINT = "the checkpoint before it is whole; free some space and go on with --resume"

Tensors = dict[str, dict[str, Tensor]]
"""Extras as they come back: by kind, then by the weight's name."""


@dataclass(frozen=True)
class State:
    """How far a run has come."""

    step: int
    samples: int
    train_s: float


def save_checkpoint(
    folder: Path,
    holdings: Sequence[ParamShard],
    optimizer: torch.optim.Optimizer,
    state: State,
    *,
    keep: int,
    crew: ProcessGroup,
    layout: Layout,
    cut: Partition,
    extra: Extra = NOTHING,
    replica: int | None = None,
) -> Path:
    """Write a checkpoint and wait for it; see `Saving`."""
    saving = AsyncSave(folder, state, keep=keep, crew=crew, layout=layout, cut=cut)
    saving.begin(holdings, optimizer, extra=extra, replica=replica)
    return saving.end()


@dataclass(frozen=True)
class SaveOptions:
    """How a checkpoint is written, and what of earlier ones stays."""

    keep_every: int | None = None
    """Also keep the first of every so many steps."""
    incremental: bool = True
    """Whether files equal to those of the checkpoint before are linked instead of written."""
    spared: Callable[[], Collection[str]] = tuple
    """Which old ones must stay, because somebody reads them."""
    buffers: Buffers | None = None
    """Memory to copy into, kept from one checkpoint to the next."""
    place: Callable[[Path], StoreDir] = StoreDir


class AsyncSave:
    """A checkpoint under way. It exists once its manifest does; then the oldest beyond `keep` are forgotten.

    All ranks call `begin` and `end` together. Between them the bytes of this rank move to the disk in a
    thread, from a copy if training goes on meanwhile; `written` says when they have.
    """

    def __init__(
        self,
        folder: Path,
        state: State,
        *,
        keep: int,
        crew: ProcessGroup,
        layout: Layout,
        cut: Partition,
        means: SaveOptions | None = None,
    ) -> None:
        self._folder, self._keep, self._crew, self._rank = folder, keep, crew, crew.rank
        self._state, self._layout, self._cut = state, layout, cut
        self._means = means or SaveOptions()
        self._target = folder / f"step-{state.step:08d}"
        self._trouble = f"{self._target}: the checkpoint could not be written"
        self._failure: WindlassError | OSError | MemoryError | None = None
        self._copied, self._given_up = threading.Event(), threading.Event()

    def begin(
        self,
        holdings: Sequence[ParamShard],
        optimizer: torch.optim.Optimizer,
        *,
        extra: Extra = NOTHING,
        replica: int | None = None,
        beside: bool = False,
        copy_later: bool = False,
    ) -> None:
        """Start to write; with `beside`, whatever happens to the tensors afterwards is not seen.

        `extra` holds more tensors by kind and by weight, shaped as the holdings. With a `replica`, moments
        and extras are this replica's own, and every replica's are saved; weights are those of replica 0.
        With `copy_later` too, the copy is made while the next gradients are computed: the caller calls
        `finish_copy` before it changes any of these tensors.
        """
        assert not MOMENTS.keys() & extra.keys(), "an extra kind has the name of a moment"
        with raise_on_all_ranks(self._crew, self._trouble, HINT):
            _open(self._means.place(self._target), self._crew)
        keys = divide(self._crew.share(claims_of(holdings, replica)))[self._rank]
        part = take_part(holdings, optimizer, extra, keys=keys, replica=replica)
        self._writer = DirectoryWriter(self._means.place(self._target), join=True)
        if beside and not copy_later:
            part = part.copied(self._means.buffers)
        self._thread = threading.Thread(
            target=self._write, args=(part, beside, copy_later), name="checkpoint", daemon=True
        )
        self._thread.start()

    @property
    def step(self) -> int:
        return self._state.step

    @property
    def written(self) -> bool:
        """Whether this rank's bytes are on the disk, or have failed to get there."""
        return not self._thread.is_alive()

    @property
    def commits(self) -> bool:
        """Whether it is this rank that commits."""
        return self._rank == 0

    def finish_copy(self) -> None:
        """Wait until the tensors may change again."""
        self._copied.wait()

    def give_up(self) -> None:
        """Leave it unfinished, for this rank alone: the company has broken up."""
        self._given_up.set()
        self._thread.join()

    def end(self, done: Callable[[Path | WindlassError], None] | None = None) -> Path:
        """Wait for the bytes of all ranks and commit, or raise what went wrong with any.

        With `done` nobody waits for the commit: a thread of rank 0 does it, and tells `done` the path or the
        failure.
        """
        self._thread.join()
        try:
            with raise_on_all_ranks(self._crew, self._trouble, HINT):
                if self._failure is not None:
                    raise self._failure
            _include(self._writer, self._crew)
            if done is None:
                with raise_on_all_ranks(self._crew, self._trouble, HINT):
                    self._commit()
        except StoreFailed:
            self._discard()
            raise
        if done is None:
            with raise_on_all_ranks(self._crew, f"{self._folder}: old checkpoints could not be removed"):
                self._forget()
        elif self._rank == 0:
            threading.Thread(target=self._commit_beside, args=(done,), name="commit", daemon=True).start()
        return self._target

    def _write(self, part: CheckpointShard, beside: bool, copy: bool) -> None:
        try:
            if copy:
                part = part.copied(self._means.buffers)
            self._copied.set()
            if beside:
                lower_priority()
            known = self._known() if self._means.incremental else {}
            for name, file in part.files(self._rank).items():
                if self._given_up.is_set():
                    return
                _write_file(file, name, self._writer, known)
        except (WindlassError, OSError, MemoryError) as error:
            self._failure = error
        finally:
            self._copied.set()

    def _known(self) -> dict[FileRecord, Path]:
        """Return the files of the checkpoint before, by what they hold."""
        before = [path for path in committed(self._folder) if path.name < self._target.name]
        manifest = load_manifest(StoreDir(before[-1])) if before else None
        return {record: before[-1] / name for name, record in manifest.files.items()} if manifest else {}

    def _commit(self) -> None:
        if self._rank != 0:
            return
        writer = self._writer
        for name in writer.records:
            if not writer.place.exists(name):
                raise StoreFailed(f"{name} was written, but not here: machines of a run share its directory")
        writer.write(STATE, json.dumps(asdict(self._state)).encode())
        told = {"layout": self._layout.model_dump(mode="json"), "cut": self._cut.model_dump(mode="json")}
        writer.write(LAYOUT, (json.dumps(told, indent=1) + "\n").encode())
        writer.commit({"kind": "checkpoint", "step": self._state.step})

    def _commit_beside(self, done: Callable[[Path | WindlassError], None]) -> None:
        try:
            self._commit()
            self._forget()
        except (WindlassError, OSError) as error:
            self._discard()
            done(StoreFailed(f"{self._trouble}: {getattr(error, 'message', error)}", hint=HINT))
        else:
            done(self._target)

    def _discard(self) -> None:
        """Remove what was written of a checkpoint that will not be: it would only fill the disk further."""
        if self._rank == 0:
            with suppress(WindlassError):  # the error that led here says more
                StoreDir(self._target).remove()

    def _forget(self) -> None:
        """Remove what came before those that stay, debris too.

        Later steps are left alone: they are of a run that was set back, which will come to them again.
        """
        if self._rank != 0:
            return
        here = {_step_of(path): path for path in committed(self._folder) if path.name <= self._target.name}
        stays = retained(here, keep=self._keep, keep_every=self._means.keep_every)
        names = {here[step].name for step in stays} | set(self._means.spared())
        for path in _started(self._folder):
            if path.name < self._target.name and path.name not in names:
                self._means.place(path).remove()


class RemoteCheckpoints(Protocol):
    """Where copies of checkpoints are kept beside the run's own directory."""

    def ahead_of(self, name: str) -> bool:
        """Say, without asking anybody, whether a newer one than this was sent there."""

    def names(self) -> list[str]:
        """List what is there."""

    def fetch(self, name: str, target: Path) -> None:
        """Bring one here, whole."""


def restore_newest(
    folder: Path,
    holdings: Sequence[ParamShard],
    optimizer: torch.optim.Optimizer,
    *,
    crew: ProcessGroup,
    extra_kinds: Collection[str] = (),
    replica: int | None = None,
    spare: RemoteCheckpoints | None = None,
) -> tuple[State | None, Tensors, list[str]]:
    """Load the newest whole checkpoint, whichever layout wrote it, from here or from where a copy is.

    Also return those of the asked extras that are there, and why newer checkpoints were passed over.
    """
    passed_over: list[str] = []
    candidates = _candidates(folder, spare, passed_over) if crew.rank == 0 else iter(())
    while (name := crew.share(next(candidates, None))[0]) is not None:
        path = folder / name
        with raise_on_all_ranks(crew, f"{path}: the checkpoint could not be read"):
            reason = _reason_against(path, holdings, extra_kinds, replica, crew)
        reasons = [said for said in crew.share(reason) if said is not None]
        if reasons:
            passed_over.append(reasons[0])
            continue
        with raise_on_all_ranks(crew, f"{path}: the checkpoint could not be read"):
            state = State(**json.loads((path / STATE).read_bytes()))
            extra = _load(CheckpointReader(path), holdings, optimizer, state, extra_kinds, replica)
        return state, extra, passed_over
    return None, {}, passed_over


def _candidates(folder: Path, spare: RemoteCheckpoints | None, troubles: list[str]) -> Iterator[str]:
    """Yield the checkpoints that are here, newest first, then fetch copies of them and of others.

    Only where the store has a newer one than any here is it asked first: it may be slow, or away, and the
    next one here costs a few steps. All ranks follow rank 0 through this.
    """
    here = [path.name for path in reversed(committed(folder))]
    behind = spare is not None and (not here or spare.ahead_of(here[0]))
    tried = [] if behind else here
    yield from tried
    elsewhere = _elsewhere(spare, troubles)
    for name in sorted({*here, *elsewhere}, reverse=True):
        if name in here and name not in tried:
            yield name
        if spare is not None and name in elsewhere and _fetched(spare, name, folder, troubles):
            yield name


def _elsewhere(spare: RemoteCheckpoints | None, troubles: list[str]) -> list[str]:
    try:
        return spare.names() if spare is not None else []
    except WindlassError as failure:
        troubles.append(failure.message)
        return []


def _fetched(spare: RemoteCheckpoints, name: str, folder: Path, troubles: list[str]) -> bool:
    try:
        StoreDir(folder / name).remove()
        spare.fetch(name, folder / name)
    except WindlassError as failure:
        troubles.append(failure.message)
        return False
    return True


def committed(folder: Path) -> list[Path]:
    """List the finished checkpoints, oldest first. Debris of a writer that died is not among them."""
    return [path for path in _started(folder) if (path / MANIFEST).exists()]


def _started(folder: Path) -> list[Path]:
    found = folder.glob("step-*") if folder.is_dir() else ()
    return sorted(path for path in found if path.name.removeprefix("step-").isdigit())


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _open(place: StoreDir, crew: ProcessGroup) -> None:
    """Unmake what was there; its parts may be those of another layout."""
    if crew.rank == 0:
        DirectoryWriter(place)
        place.remove()


def _write_file(
    part: CheckpointShard, name: str, writer: DirectoryWriter, known: Mapping[FileRecord, Path]
) -> None:
    """Write a file, or give a second name to one that holds the same.

    The digest comes first and costs nothing more: the bytes are in memory and are hashed once either way.
    """
    digests = Digests()
    part.write(digests, name)
    record = digests.records[name]
    if record.bytes >= LINK_BYTES and record in known and writer.link(name, known[record], record):
        return
    part.write(writer.place, name)
    writer.include({name: record})


def _include(writer: DirectoryWriter, crew: ProcessGroup) -> None:
    for records in crew.share({name: asdict(record) for name, record in writer.records.items()}):
        writer.include({name: FileRecord(**record) for name, record in records.items()})


def _reason_against(
    path: Path,
    holdings: Sequence[ParamShard],
    kinds: Collection[str],
    replica: int | None,
    crew: ProcessGroup,
) -> str | None:
    """Say why a checkpoint cannot be used. The bytes to verify are divided among all ranks."""
    try:
        manifest = load_manifest(StoreDir(path))
        files = sorted(manifest.files) if manifest is not None else []
        verify(StoreDir(path), manifest, files[crew.rank :: crew.world])
        source = CheckpointReader(path)
        for holding in holdings:
            for kind in (None, *_kinds(source, holding, kinds)):
                source.check(holding.name, holding.shape, holding.box, kind, replica)
    except Damaged as damage:
        return damage.message
    return None


def _kinds(source: CheckpointReader, holding: ParamShard, kinds: Collection[str]) -> list[str]:
    """List what a checkpoint keeps with a weight, of all that is of use."""
    return [kind for kind in (*MOMENTS, *kinds) if source.has(holding.name, kind)]


def _load(
    source: CheckpointReader,
    holdings: Sequence[ParamShard],
    optimizer: torch.optim.Optimizer,
    state: State,
    kinds: Collection[str],
    replica: int | None,
) -> Tensors:
    """Fill weights and moments; return the extras. Only slices of these holdings are read."""
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
