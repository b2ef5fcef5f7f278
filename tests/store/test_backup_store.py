"""A backup keeps its promises on every kind of store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from windlass.backup.make import make
from windlass.backup.prune import prune
from windlass.backup.repository import open_repository
from windlass.backup.restore import restore
from windlass.spec.backup import Keep
from windlass.spec.errors import Damaged
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

ONE = Keep(last=1, daily=0, weekly=0, monthly=0)


def test_what_is_sent_comes_back_and_what_is_forgotten_goes(place: StoreDir, tmp_path: Path) -> None:
    home = tmp_path / "home"
    StoreDir(home).write("runs/poems/1/notes", b"first" * 1000)
    repository = open_repository(place.url, b"open sesame", create=True)
    make(home, repository)
    StoreDir(home).write("runs/poems/1/notes", b"second" * 1000)
    newest = make(home, repository).snapshot
    gone = prune(repository, ONE)
    assert (gone.kept, gone.chunks) == ((newest.id,), 1)
    shutil.rmtree(home)
    restore(open_repository(place.url, b"open sesame"), home)
    assert (home / "runs/poems/1/notes").read_bytes() == b"second" * 1000
    assert place.names("claims") == []
    repository.drop(newest.chunks)
    with pytest.raises(Damaged, match="missing"):
        restore(repository, tmp_path / "other")
