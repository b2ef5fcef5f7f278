"""Restores a snapshot to a scratch directory, compares every digest, and queries its newest model.

Every byte is read from the store. Finished directories are also checked against their own manifests, the
databases are opened, the audit log is verified from end to end, and an engine completes a prompt with the
restored weights.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windlass.backup.repository import BackupRepository
from windlass.backup.restore import restore
from windlass.backup.smoke_test import answer_of
from windlass.registry.versions import Registry, Version
from windlass.serve.records.audit_verify import verify as verify_chain
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import FILE, open_state
from windlass.spec.errors import Damaged
from windlass.spec.protocol.progress import Report, silent
from windlass.store.database import sqlite_url
from windlass.store.manifest import MANIFEST, load_manifest
from windlass.store.manifest import verify as verify_directory
from windlass.store.store_dir import StoreDir


@dataclass(frozen=True)
class RestoreCheck:
    """The contents of a snapshot that was restored and found intact."""

    snapshot: str
    files: int
    bytes: int
    models: int
    runs: int
    keys: int
    model: str | None
    """The model that was queried; None if the snapshot has none, or `ask` was off."""
    answer: str | None
    restore_s: float
    seconds: float

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def verify(
    repository: BackupRepository,
    scratch: Path,
    wanted: str | None = None,
    *,
    ask: bool = True,
    parallel: int = 4,
    report: Report = silent,
) -> RestoreCheck:
    """Verify a snapshot; raise Damaged if it differs from what was backed up."""
    began = time.monotonic()
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="verify-", dir=scratch) as folder:
        home = Path(folder) / "home"
        back = restore(repository, home, wanted, parallel=parallel, report=report)
        keys = _check_state(home)
        _check_directories(home)
        newest = newest_model(home)
        answer = answer_of(newest, home / "logs") if ask and newest is not None else None
        registry = Registry(home)
        return RestoreCheck(
            snapshot=back.snapshot.id,
            files=len(back.snapshot.files),
            bytes=back.snapshot.bytes,
            models=sum(len(registry.versions(name)) for name in registry.names()),
            runs=len(list(home.glob("runs/*/*/run.json"))),
            keys=keys,
            model=str(newest) if answer is not None else None,
            answer=answer,
            restore_s=round(back.seconds, 3),
            seconds=round(time.monotonic() - began, 3),
        )


def newest_model(home: Path) -> Version | None:
    """Return the version that was registered last and can be served by itself."""
    registry = Registry(home)
    found = [version for name in registry.names() for version in registry.versions(name)]
    whole = [version for version in found if not version.manifest.meta.get("adapter_of")]
    return max(whole, key=lambda version: (version.registered, version.number), default=None)


def _check_directories(home: Path) -> None:
    for file in sorted(home.rglob(MANIFEST)):
        place = StoreDir(file.parent)
        manifest = load_manifest(place)
        assert manifest is not None
        there = [name for name in manifest.files if (file.parent / name).exists()]
        verify_directory(place, manifest, there)


def _check_state(home: Path) -> int:
    """Verify the service's database; return its number of API keys."""
    if not (home / FILE).exists():
        return 0
    database = open_state(sqlite_url(home / FILE))
    try:
        verdict = verify_chain(database)
        if not verdict.ok:
            raise Damaged(f"{FILE}: its audit log is not whole: {verdict.reasons[0]}")
        return len(ApiKeys(database).list())
    finally:
        database.close()
