"""Saves that are killed: `python -m windlass.lab.torch.save_crash_proof FOLDER --times N`.

For `windlass prove saves`. Every save is made by a separate process, forked from this one, with the code that
runs use. It counts the bytes that it writes, the renames and the removals, and kills itself with SIGKILL at a
random count: in the middle of a write as well as between two. What is left on the disk is then loaded and
compared, value by value, with what was saved at that step.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from windlass.parallel.param_shard import ParamShard, holdings_of
from windlass.parallel.process_group import SingleProcess
from windlass.spec.layout import Layout, Partition
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.store.store_dir import StoreDir
from windlass.train.checkpoint.async_save import AsyncSave, SaveOptions, State, committed, restore_newest

KEEP = 2
LATE, LAST = 2000, 5
"""Bytes and actions before the end of a save: of its small files, and around its commit, when the manifest
is renamed and old checkpoints are removed."""
CUT = Partition(pieces=(), features={}, how="whole")


class Fuse:
    """Kills this process after `limit` bytes and actions; without a limit it only counts."""

    def __init__(self, limit: int | None) -> None:
        self.passed, self._limit = 0, limit

    def room(self, wanted: int) -> int:
        """Return how much of the wanted amount may still be done."""
        return wanted if self._limit is None else min(wanted, self._limit - self.passed)

    def burn(self, done: int) -> None:
        self.passed += done
        if self._limit is not None and self.passed >= self._limit:
            os.kill(os.getpid(), signal.SIGKILL)


class CrashingStoreDir(StoreDir):
    """A directory whose writer is killed by the fuse."""

    def __init__(self, url: Path, fuse: Fuse) -> None:
        super().__init__(url)
        self._fuse = fuse

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        with super().writing(name) as file:
            yield _CrashingFile(file, self._fuse)  # type: ignore[misc]
            self._fuse.burn(1)  # written, but not renamed yet
        self._fuse.burn(1)

    def remove(self, name: str = "") -> None:
        self._fuse.burn(1)
        super().remove(name)
        self._fuse.burn(1)


class _CrashingFile:
    """A file to write to; the last write of a killed process is partial."""

    def __init__(self, file: IO[bytes], fuse: Fuse) -> None:
        self._file, self._fuse = file, fuse

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        room = self._fuse.room(view.nbytes)
        self._file.write(view[:room])
        if room < view.nbytes:
            self._file.flush()
        self._fuse.burn(room)
        return view.nbytes


@dataclass(frozen=True)
class SaveKill:
    """The outcome of one kill."""

    step: int
    """The step that was being saved."""
    at: int
    """The byte or action of the save at which its process was killed."""
    killed: bool
    newest: int
    """The step that loaded afterwards."""
    loaded: bool
    """Whether its values are those saved at the last complete step or at this one."""
    newest_whole: bool
    """Whether that is the newest with a manifest, and none was skipped."""


def main(argv: list[str]) -> int:
    args = _parse(argv)
    torch.set_num_threads(1)  # a process with more threads cannot be forked
    rng, folder = random.Random(args.seed), args.folder
    total = _save(folder, 1, None)
    kills: list[SaveKill] = []
    for _ in range(args.times):
        kills.append(_kill_once(folder, _drawn(total, rng), kills[-1].newest if kills else 1))
        emit({"kill": kills[-1].__dict__})
    emit({"done": _figures(kills, total)})
    return 0


def _figures(kills: list[SaveKill], total: int) -> dict[str, Any]:
    return {
        "saves": len(kills),
        "killed": sum(kill.killed for kill in kills),
        "loaded": sum(kill.loaded for kill in kills),
        "newest_whole": sum(kill.newest_whole for kill in kills),
        "committed_before_death": sum(kill.newest == kill.step for kill in kills),
        "bytes_of_a_save": total,
    }


def _drawn(total: int, rng: random.Random) -> int:
    """Draw the kill point: anywhere, in the small files at the end, or around the commit, equally often."""
    low, high = rng.choice(((1, total), (total - LATE, total), (total - LAST, total + LAST)))
    return rng.randint(low, high)


def _kill_once(folder: Path, at: int, before: int) -> SaveKill:
    """Save the step after the newest, kill the save on the way, and load what is left."""
    step = before + 1
    child = os.fork()
    if child == 0:
        _save(folder, step, at)
        os.kill(os.getpid(), signal.SIGKILL)  # the save ended before the drawn kill point
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    newest, right, skipped = _load(folder)
    whole = not skipped and committed(folder)[-1].name == f"step-{newest:08d}"
    return SaveKill(step, at, killed, newest, right and newest in (before, step), whole)


def _save(folder: Path, step: int, limit: int | None) -> int:
    """Save a step as runs do, with a fuse; return the number of bytes and actions."""
    fuse, (holdings, optimizer) = Fuse(limit), _learner(step)
    options = SaveOptions(place=partial(CrashingStoreDir, fuse=fuse))
    saving = AsyncSave(
        folder,
        State(step, step, 1.0),
        keep=KEEP,
        group=SingleProcess(),
        layout=Layout(),
        cut=CUT,
        options=options,
    )
    saving.start(holdings, optimizer, background=True, copy_later=True)
    saving.finish_copy()
    saving.commit()
    return fuse.passed


def _load(folder: Path) -> tuple[int, bool, list[str]]:
    """Load the newest; return its step, whether it has the values of that step, and what was skipped."""
    holdings, optimizer = _learner(0)
    state, _, skipped = restore_newest(folder, holdings, optimizer, group=SingleProcess())
    if state is None:
        return -1, False, skipped
    wanted, moments = _learner(state.step)
    right = all(
        torch.equal(a.tensor, b.tensor)
        and torch.equal(optimizer.state[a.tensor]["exp_avg_sq"], moments.state[b.tensor]["exp_avg_sq"])
        for a, b in zip(holdings, wanted, strict=True)
    )
    return state.step, right, skipped


def _learner(step: int) -> tuple[list[ParamShard], torch.optim.Optimizer]:
    """Return weights and moments that are a function of the step."""
    torch.manual_seed(step)
    model = nn.Sequential(nn.Linear(64, 96), nn.Linear(96, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return holdings_of(model), optimizer


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog="python -m windlass.lab.torch.save_crash_proof")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
