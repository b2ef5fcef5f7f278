"""Adapts a restored home to its place, which may be another one.

Runs refer to their corpus, and corpora to their cache, by absolute paths; paths below the old home are
changed to the new one. A dump is loaded into the given database, or becomes a file of the home. Each step
can be repeated, so an interrupted restore can be run again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from windlass.backup.databases import kind_of, open_for
from windlass.backup.snapshot import BackupSnapshot, FileEntry
from windlass.spec.errors import Damaged
from windlass.spec.run import RUN_FILE
from windlass.store.database import sqlite_url
from windlass.store.db_backup import check_sqlite, load, tables_in
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir

ORIGIN = "origin.json"


def relocate(
    staging: Path, snapshot: BackupSnapshot, home: Path, databases: Mapping[str, str] | None = None
) -> list[str]:
    """Turn the fetched files into a home; return what is left to do by hand."""
    for entry in snapshot.files:
        if entry.role == "sqlite":
            check_sqlite(staging / entry.path)
        elif entry.role == "dump":
            _load(staging, entry, databases or {})
        elif Path(entry.path).name in (RUN_FILE, ORIGIN) and snapshot.home != str(home):
            _move_paths(staging, entry.path, snapshot.home, str(home))
    return [*_corpora_to_build(staging), *(f"not in the snapshot: {what}" for what in snapshot.left_out)]


def _load(staging: Path, entry: FileEntry, databases: Mapping[str, str]) -> None:
    """Load a dump. It is kept under another name until it is loaded, then deleted."""
    kind = kind_of(entry.path)
    if kind is None:
        raise Damaged(f"{entry.path}: a dump of a database that this windlass does not know")
    source = staging / entry.path
    aside = source.with_name(f"{source.name}.dump")
    if source.exists() and not aside.exists():
        source.rename(aside)
    for ending in ("", "-wal", "-shm"):  # left by an interrupted attempt
        source.with_name(source.name + ending).unlink(missing_ok=True)
    database = open_for(databases.get(kind.name) or sqlite_url(source), tables_in(aside))
    try:
        load(aside, database, kind.is_fresh)
    finally:
        database.close()
    aside.unlink()


def _move_paths(staging: Path, path: str, old: str, new: str) -> None:
    """Change strings that are paths below the old home."""

    def moved(value: object) -> object:
        if isinstance(value, dict):
            return {key: moved(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [moved(inner) for inner in value]
        if isinstance(value, str) and (value == old or value.startswith(f"{old}/")):
            return new + value[len(old) :]
        return value

    content = json.loads((staging / path).read_bytes())
    StoreDir(staging).write(path, json.dumps(moved(content), indent=1, ensure_ascii=False).encode())


def _corpora_to_build(staging: Path) -> list[str]:
    """List the corpora whose tokens are neither in the backup nor in a store of their own."""
    needs = []
    for folder in sorted((staging / "corpora").glob("*")):
        manifest = load_manifest(StoreDir(folder))
        here = manifest is None or all((folder / name).exists() for name in manifest.files)
        if not here and not (folder / ORIGIN).exists():
            needs.append(f"corpus {folder.name}: its tokens were not backed up; build it again from its text")
    return needs
