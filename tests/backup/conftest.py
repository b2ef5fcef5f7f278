"""A small home with everything that a backup must bring back, and stores to keep it in."""

import json
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.backup.repository import BackupRepository, open_repository
from windlass.registry.versions import Registry
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.store.database import sqlite_url
from windlass.store.journal import Journal
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

TESTER = Actor("", "cli tester")


def finished(path: Path, **files: bytes) -> Path:
    writer = DirectoryWriter(StoreDir(path))
    for name, data in files.items():
        writer.write(name.replace("__", "/").replace("_bin", ".bin"), data)
    writer.commit({"kind": "test"})
    return path


@pytest.fixture(autouse=True)
def _without_a_real_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug here: what is written need not reach the disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Two versions and an alias, a run with checkpoints, a corpus, a key; caches and debris beside them."""
    home = tmp_path / "home"
    registry = Registry(home)
    for number in (1, 2):
        registry.register("poems", finished(tmp_path / f"made-{number}", weights=bytes([number]) * 70_000))
    registry.promote("poems@1")
    run = home / "runs" / "poems" / "1"
    run_json = {"corpus": str(home / "corpora" / "abc"), "start_from": None, "job": {"name": "poems"}}
    StoreDir(run).write("run.json", json.dumps(run_json).encode())
    Journal(StoreDir(run)).append({"event": "step", "step": 1})
    for step in (10, 20):
        finished(run / "checkpoints" / f"step-{step:08d}", part=b"state" * step)
    (run / "checkpoints" / "step-00000030").mkdir()
    (run / "checkpoints" / "step-00000030" / "part").write_bytes(b"its writer died")
    finished(home / "corpora" / "abc", corpus__json=b"{}", train__tokens_bin=b"12345678" * 1000)
    database = open_state(sqlite_url(home / "service.db"))
    ApiKeys(database).make("ada", TESTER)
    database.close()
    for junk in ("cache/x.shard", "logs/y.log", "prove/z", "models/poems/.lock", "runs/poems/1/a.part-1-ab"):
        StoreDir(home).write(junk, b"can be made again")
    return home


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., BackupRepository]:
    """Open a backup in a folder of the test."""
    name = secrets.token_hex(4)
    return lambda secret=None, create=True: open_repository(str(tmp_path / name), secret, create=create)


@pytest.fixture
def repository(opened: Callable[..., BackupRepository]) -> BackupRepository:
    return opened()


@pytest.fixture
def tree() -> Callable[[Path], dict[str, bytes]]:
    """Everything below a folder that a backup keeps, by path."""
    from windlass.backup.contents import look

    def read(home: Path) -> dict[str, bytes]:
        found = look(home)
        paths = [*found.loose, *found.aliases]
        for folder in found.whole:
            paths += [p.relative_to(home).as_posix() for p in (home / folder).rglob("*") if p.is_file()]
        return {path: (home / path).read_bytes() for path in sorted(paths)}

    return read
