"""A small disk for the checkpoints of a run, which can be filled; and corruption of checkpoints."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

from windlass.lab.chaos.injected_fault import NothingToHit
from windlass.spec.errors import StoreFailed
from windlass.spec.run import CHECKPOINTS
from windlass.store.manifest import MANIFEST

SOURCE = "windlass-chaos-"
"""Marks our mounts in /proc/mounts; followed by the process id of their maker."""
FILLER = ".filler"
FLIPPED_BYTES = 64
CHUNK_BYTES = 1 << 20


class SmallDisk:
    """A tmpfs over a directory. Only root can mount it."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={size_bytes},mode=0755"
        done = _run("mount", "-t", "tmpfs", "-o", options, f"{SOURCE}{os.getpid()}", str(path))
        if done.returncode:
            raise StoreFailed(f"{path}: no tmpfs can be mounted: {done.stderr.strip()}")

    def fill(self) -> None:
        """Leave no byte free."""
        with (self.path / FILLER).open("ab", buffering=0) as file:
            size = CHUNK_BYTES
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def empty(self) -> None:
        (self.path / FILLER).unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount the disk; its files are copied to the directory below, for later inspection."""
        self.empty()
        aside = self.path.with_name(f"{self.path.name}.kept")
        shutil.copytree(self.path, aside, dirs_exist_ok=True)
        unmount(self.path)
        shutil.copytree(aside, self.path, dirs_exist_ok=True)
        shutil.rmtree(aside)


def unmount(path: Path) -> None:
    """Unmount a small disk lazily: a dying process may still have it open."""
    if _run("umount", str(path)).returncode:
        _run("umount", "--lazy", str(path))


def mounted() -> dict[Path, int]:
    """Return the mount points of small disks, each with the process that made it."""
    table = Path("/proc/mounts")
    rows = [line.split() for line in table.read_text().splitlines()] if table.exists() else []
    ours = [row for row in rows if row[0].startswith(SOURCE)]
    return {Path(row[1]): int(row[0].removeprefix(SOURCE)) for row in ours}


def corrupt_newest(run: Path, rng: random.Random) -> str:
    """Flip bytes in the largest shard of the newest complete checkpoint. Return its name."""
    whole = sorted(path.parent for path in (run / CHECKPOINTS).glob(f"step-*/{MANIFEST}"))
    if len(whole) < 2:
        raise NothingToHit("there is no checkpoint with another before it")
    parts = [path for path in whole[-1].iterdir() if path.suffix == ".safetensors"]
    if not parts:
        raise NothingToHit(f"{whole[-1].name} has no part to damage")
    part = max(parts, key=lambda path: path.stat().st_size)
    # A file that is linked from several checkpoints must change in the newest one only.
    copy = part.with_name(f"{part.name}.damaged")
    copy.write_bytes(_flipped(part.read_bytes(), rng))
    copy.replace(part)
    return f"{whole[-1].name}/{part.name}"


def _flipped(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(FLIPPED_BYTES):
        damaged[rng.randrange(len(damaged))] ^= 1 + rng.randrange(255)
    return bytes(damaged)


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)
