"""Selects the files of a home to back up, and their order.

    aliases of models -> finished directories -> databases -> all other files

Read in this order, a home that is in use gives a state that a crash could have left: an alias names an
existing version, and a journal or ledger is at least as new as the checkpoints. A finished directory never
changes, so it is kept whole or, if it is deleted meanwhile, not at all. Left out are files that can be made
again (caches, logs, proofs, measurements, files being written) and the secrets of tenants, which must not be
copied. A tenant's home is treated as a home of its own.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from windlass.store.db_backup import is_sqlite
from windlass.store.manifest import MANIFEST

FOLDER = "backup"
"""Folder of the home with this machine's own backup state; not backed up."""
LEFT_OUT = frozenset({"cache", "logs", "prove", "bench", "chaos", "secrets", FOLDER})
OWN = ("models/*/*", "corpora/*", "runs/*/*/model", "runs/*/*/checkpoints/*")
WHOLE = (*OWN, *(f"tenants/*/{pattern}" for pattern in OWN))
"""Directories that are complete once they have a manifest; without it they are ignored."""
ALIASES = ("models/*/aliases.json", "tenants/*/models/*/aliases.json")
TOKENS = ("corpora/*.bin", "tenants/*/corpora/*.bin")
JUNK = ("*.lock", ".*.lock", "*.part-*", "*.tmp", "*-wal", "*-shm", "*-journal", "*.part")


@dataclass
class Contents:
    """Paths below the home, by kind."""

    aliases: dict[str, bytes] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)
    databases: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)


def look(home: Path) -> Contents:
    """Find the files to back up. Aliases are read here, before any version is listed."""
    found = Contents()
    for file in sorted(file for pattern in ALIASES for file in home.glob(pattern)):
        found.aliases[file.relative_to(home).as_posix()] = file.read_bytes()
    _look_into(home, "", found)
    return found


def files_of(home: Path, folder: str) -> Iterator[str]:
    """List the files below a folder, without junk."""
    for path in sorted((home / folder).rglob("*")):
        if path.is_file() and not path.is_symlink() and not _is_junk(path.name):
            yield path.relative_to(home).as_posix()


def is_tokens(path: str) -> bool:
    """Whether a file holds the tokens of a corpus, which are backed up only on request."""
    return any(fnmatch.fnmatch(path, pattern) for pattern in TOKENS)


def newest_write_s(home: Path) -> float:
    """Return the newest modification time of the files to back up; 0 in an empty home."""
    newest = 0.0
    for folder, folders, files in os.walk(home):
        if Path(folder) == home:
            folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in files:
            # The newest writes of a database are in its write-ahead log.
            if not _is_junk(name) or name.endswith("-wal"):
                try:
                    newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime)
                except FileNotFoundError:
                    continue
    return newest


def _look_into(home: Path, folder: str, found: Contents) -> None:
    try:
        entries = sorted(os.scandir(home / folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_symlink() or _is_junk(entry.name) or path in found.aliases:
            continue
        if not entry.is_dir():
            _sort(home, path, found)
        elif folder or entry.name not in LEFT_OUT:
            if not any(_matches(path, pattern) for pattern in WHOLE):
                _look_into(home, path, found)
            elif (home / path / MANIFEST).exists():
                found.whole.append(path)


def _sort(home: Path, path: str, found: Contents) -> None:
    is_database = path.endswith((".db", ".sqlite")) and is_sqlite(home / path)
    (found.databases if is_database else found.loose).append(path)


def _matches(path: str, pattern: str) -> bool:
    """Match component by component: a star matches within one name."""
    one, other = path.split("/"), pattern.split("/")
    return len(one) == len(other) and all(fnmatch.fnmatch(a, b) for a, b in zip(one, other, strict=True))


def _is_junk(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in JUNK)
