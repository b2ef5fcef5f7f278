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
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from windlass.parallel.crew import Crew
from windlass.parallel.holding import Holding
from windlass.spec.errors import Damaged, StoreFailed, WindlassError
from windlass.spec.layout import Cut, Layout
from windlass.store.manifest import MANIFEST, DirectoryWriter, FileRecord, load_manifest, verify
from windlass.store.place import Place
from windlass.train.accord import accord
from windlass.train.assemble import Assembled
from windlass.train.part import MOMENTS, Extra, Part, claims_of, divide, take_part

STATE, LAYOUT = "state.json", "layout.json"
NOTHING: Extra = MappingProxyType({})
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
    holdings: Sequence[Holding],
    optimizer: torch.optim.Optimizer,
    state: State,
    *,
    keep: int,
    crew: Crew,
    layout: Layout,
    cut: Cut,
    extra: Extra = NOTHING,
    replica: int | None = None,
) -> Path:
    """Write a checkpoint and wait for it; see `Saving`."""
    saving = Saving(folder, state, keep=keep, crew=crew, layout=layout, cut=cut)
    saving.begin(holdings, optimizer, extra=extra, replica=replica)
    return saving.end()


class Saving:
    """A checkpoint under way. It exists once its manifest does; then the oldest beyond `keep` are forgotten.

    All ranks call `begin` and `end` together. Between them the bytes of this rank move to the disk in a
    thread, from a copy if training goes on meanwhile; `written` says when they have.
    """

    def __init__(
        self, folder: Path, state: State, *, keep: int, crew: Crew, layout: Layout, cut: Cut
    ) -> None:
        self._folder, self._keep, self._crew = folder, keep, crew
        self._state, self._layout, self._cut = state, layout, cut
        self._target = folder / f"step-{state.step:08d}"
        self._trouble = f"{self._target}: the checkpoint could not be written"
        self._failure: WindlassError | OSError | MemoryError | None = None

    def begin(
        self,
        holdings: Sequence[Holding],
        optimizer: torch.optim.Optimizer,
        *,
        extra: Extra = NOTHING,
        replica: int | None = None,
        beside: bool = False,
    ) -> None:
        """Start to write; with `beside`, whatever happens to the tensors afterwards is not seen.

        `extra` holds more tensors by kind and by weight, shaped as the holdings. With a `replica`, moments
        and extras are this replica's own, and every replica's are saved; weights are those of replica 0.
        """
        assert not MOMENTS.keys() & extra.keys(), "an extra kind has the name of a moment"
        with accord(self._crew, self._trouble, HINT):
            _open(self._target, self._crew)
        keys = divide(self._crew.share(claims_of(holdings, replica)))[self._crew.rank]
        part = take_part(holdings, optimizer, extra, keys=keys, replica=replica)
        self._writer = DirectoryWriter(Place(self._target), join=True)
        self._thread = threading.Thread(
            target=self._write,
            args=(part.copied() if beside else part, self._crew.rank),
            name="checkpoint",
            daemon=True,
        )
        self._thread.start()

    @property
    def step(self) -> int:
        return self._state.step

    @property
    def written(self) -> bool:
        """Whether this rank's bytes are on the disk, or have failed to get there."""
        return not self._thread.is_alive()

    def end(self) -> Path:
        """Wait for the bytes of all ranks and commit, or raise what went wrong with any."""
        self._thread.join()
        try:
            with accord(self._crew, self._trouble, HINT):
                if self._failure is not None:
                    raise self._failure
            _include(self._writer, self._crew)
            with accord(self._crew, self._trouble, HINT):
                _commit(self._writer, self._crew, self._state, self._layout, self._cut)
        except StoreFailed:
            _discard(self._target, self._crew)
            raise
        with accord(self._crew, f"{self._folder}: old checkpoints could not be removed"):
            _forget(self._folder, self._target, self._keep, self._crew)
        return self._target

    def _write(self, part: Part, rank: int) -> None:
        try:
            part.write(self._writer, rank)
        except (WindlassError, OSError, MemoryError) as error:
            self._failure = error


def restore_newest(
    folder: Path,
    holdings: Sequence[Holding],
    optimizer: torch.optim.Optimizer,
    *,
    crew: Crew,
    extra_kinds: Collection[str] = (),
    replica: int | None = None,
) -> tuple[State | None, Tensors, list[str]]:
    """Load the newest whole checkpoint, whichever layout wrote it.

    Also return those of the asked extras that are there, and why newer checkpoints were passed over.
    """
    passed_over: list[str] = []
    names: list[str] = crew.share([path.name for path in committed(folder)])[0]
    for path in (folder / name for name in reversed(names)):
        with accord(crew, f"{path}: the checkpoint could not be read"):
            reason = _reason_against(path, holdings, extra_kinds, replica, crew)
        reasons = [said for said in crew.share(reason) if said is not None]
        if reasons:
            passed_over.append(reasons[0])
            continue
        with accord(crew, f"{path}: the checkpoint could not be read"):
            state = State(**json.loads((path / STATE).read_bytes()))
            extra = _load(Assembled(path), holdings, optimizer, state, extra_kinds, replica)
        return state, extra, passed_over
    return None, {}, passed_over


def committed(folder: Path) -> list[Path]:
    """List the finished checkpoints, oldest first. Debris of a writer that died is not among them."""
    return [path for path in _started(folder) if (path / MANIFEST).exists()]


def _started(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.exists() else []


def _open(target: Path, crew: Crew) -> None:
    """Unmake what was there; its parts may be those of another layout."""
    if crew.rank == 0:
        DirectoryWriter(Place(target))
        Place(target).remove()


def _include(writer: DirectoryWriter, crew: Crew) -> None:
    for records in crew.share({name: asdict(record) for name, record in writer.records.items()}):
        writer.include({name: FileRecord(**record) for name, record in records.items()})


def _commit(writer: DirectoryWriter, crew: Crew, state: State, layout: Layout, cut: Cut) -> None:
    if crew.rank != 0:
        return
    for name in writer.records:
        if not writer.place.exists(name):
            raise StoreFailed(f"{name} was written, but not here: machines of a run share its directory")
    writer.write(STATE, json.dumps(asdict(state)).encode())
    told = {"layout": layout.model_dump(mode="json"), "cut": cut.model_dump(mode="json")}
    writer.write(LAYOUT, (json.dumps(told, indent=1) + "\n").encode())
    writer.commit({"kind": "checkpoint", "step": state.step})


def _discard(target: Path, crew: Crew) -> None:
    """Remove what was written of a checkpoint that will not be: it would only fill the disk further."""
    if crew.rank == 0:
        with suppress(WindlassError):  # the error that led here says more
            Place(target).remove()


def _forget(folder: Path, target: Path, keep: int, crew: Crew) -> None:
    """Remove what came before the newest `keep`, debris too.

    Later steps are left alone: they are of a run that was set back, which will come to them again.
    """
    if crew.rank == 0:
        kept = [path for path in committed(folder) if path.name <= target.name][-keep:]
        for path in _started(folder):
            if path.name < target.name and path not in kept:
                Place(path).remove()


def _reason_against(
    path: Path, holdings: Sequence[Holding], kinds: Collection[str], replica: int | None, crew: Crew
) -> str | None:
    """Say why a checkpoint cannot be used. The bytes to verify are divided among all ranks."""
    try:
        manifest = load_manifest(Place(path))
        files = sorted(manifest.files) if manifest is not None else []
        verify(Place(path), manifest, files[crew.rank :: crew.world])
        source = Assembled(path)
        for holding in holdings:
            for kind in (None, *_kinds(source, holding, kinds)):
                source.check(holding.name, holding.shape, holding.box, kind, replica)
    except Damaged as damage:
        return damage.message
    return None


def _kinds(source: Assembled, holding: Holding, kinds: Collection[str]) -> list[str]:
    """List what a checkpoint keeps with a weight, of all that is of use."""
    return [kind for kind in (*MOMENTS, *kinds) if source.has(holding.name, kind)]


def _load(
    source: Assembled,
    holdings: Sequence[Holding],
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
