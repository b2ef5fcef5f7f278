"""Killed after any side effect, run again: the same end, and no snapshot was ever broken."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.backup import relocate
from windlass.backup import restore as restoring
from windlass.backup.make import BackupOptions, make
from windlass.backup.prune import prune
from windlass.backup.repository import BackupRepository, open_repository
from windlass.backup.restore import restore, staging_of
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.backup import Keep
from windlass.store.database import sqlite_url
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

ONE = Keep(last=1, daily=0, weekly=0, monthly=0)
SINGLE = BackupOptions(corpora=True, parallel=1)
Tree = Callable[[Path], dict[str, bytes]]
some_kills = st.lists(st.integers(1, 60), min_size=1, max_size=4)
examples = settings(max_examples=12, suppress_health_check=list(HealthCheck))


class Killed(BaseException):
    """The process is no more."""


@contextmanager
def killed_after(count: int) -> Iterator[None]:
    """Let so many side effects happen, then none any more."""
    left = count

    def mortal(effect: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left <= 0:
                raise Killed
            done = effect(*args, **options)
            left -= 1
            if left <= 0:
                raise Killed
            return done

        return act

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (StoreDir, "write"),
            (StoreDir, "create"),
            (StoreDir, "remove"),
            (Path, "rename"),
        ):
            patch.setattr(owner, name, mortal(getattr(owner, name)))
        patch.setattr(restoring, "_fetch_file", mortal(restoring._fetch_file))
        patch.setattr(relocate, "load", mortal(relocate.load))
        for name in ("rmdir", "unlink"):
            patch.setattr(Path, name, mortal(getattr(Path, name)))
        yield


def whole(repository: BackupRepository) -> None:
    """Every snapshot that is listed has all that it lists."""
    held = set(repository.chunks())
    for id_ in repository.ids():
        snapshot = repository.read(id_)
        assert snapshot.chunks <= held
        for chunk in snapshot.chunks:
            repository.get(chunk)


def tried(work: Callable[[], object], kills: list[int], check: Callable[[], None]) -> None:
    """Do `work`, killed again and again, then once to its end."""
    for count in kills:
        try:
            with killed_after(count):
                work()
        except Killed:
            pass
        check()
    work()
    check()


@contextmanager
def stage(home: Path) -> Iterator[tuple[Path, str]]:
    """A copy of the home, and a place for its backup."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "home"
        shutil.copytree(home, copy)
        yield copy, str(Path(folder) / "backup")


@given(kills=some_kills)
@examples
def test_make_may_die_anywhere(home: Path, tree: Tree, kills: list[int]) -> None:
    with stage(home) as (copy, url):

        def check() -> None:
            if (Path(url) / "backup.json").exists():
                whole(open_repository(url))

        tried(lambda: make(copy, open_repository(url, create=True), SINGLE), kills, check)
        before = tree(copy)
        shutil.rmtree(copy)
        restore(open_repository(url), copy)
        assert tree(copy) == before


@given(kills=some_kills)
@examples
def test_prune_may_die_anywhere(home: Path, kills: list[int]) -> None:
    with stage(home) as (copy, url):
        repository = open_repository(url, create=True)
        for number in range(4):
            (copy / "runs" / "poems" / "1" / "notes").write_bytes(bytes([number]) * 5000)
            newest = make(copy, repository, SINGLE).snapshot
        tried(lambda: prune(open_repository(url), ONE), kills, lambda: whole(repository))
        assert repository.ids() == [newest.id]
        assert set(repository.chunks()) == newest.chunks


@given(kills=some_kills)
@examples
def test_restore_may_die_anywhere(home: Path, tree: Tree, kills: list[int]) -> None:
    with stage(home) as (copy, url):
        repository = open_repository(url, create=True)
        make(copy, repository, SINGLE)
        before = tree(copy)
        shutil.rmtree(copy)

        def work() -> None:
            if not copy.exists():
                restore(repository, copy, parallel=1)

        def check() -> None:
            assert not copy.exists() or tree(copy) == before  # all of it, or nothing
            whole(repository)

        tried(work, kills, check)
        assert tree(copy) == before
        assert not staging_of(copy).exists()


def test_nothing_of_a_killed_attempt_is_in_a_home_that_came_back(
    home: Path, tree: Tree, tmp_path: Path
) -> None:
    """A process that is really killed leaves what it was writing."""
    repository = open_repository(str(tmp_path / "backup"), create=True)
    make(home, repository, SINGLE)
    before = tree(home)
    shutil.rmtree(home)
    for count in range(1, 60):
        assert dies(lambda: restore(repository, home, parallel=1), count)
        if (staging_of(home) / restoring.MARK).exists():
            break
    left = staging_of(home) / "models" / "poems" / "1" / "manifest.json.part-77-abcd"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.write_text("half of it")
    restore(repository, home)
    assert tree(home) == before


def killed_by_signal(command: list[str], delay_s: float) -> None:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(delay_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()


def dies(work: Callable[[], object], count: int) -> bool:
    """Do `work` up to so many effects; say whether it died of that."""
    try:
        with killed_after(count):
            work()
    except Killed:
        return True
    return False


def test_every_single_effect_of_a_restore_may_be_the_last(home: Path, tree: Tree, tmp_path: Path) -> None:
    """With a database that was on a server, and becomes a file of the home or fills another one."""
    elsewhere = tmp_path / "elsewhere.db"
    (home / "service.db").rename(elsewhere)
    repository = open_repository(str(tmp_path / "backup"), create=True)
    make(
        home,
        repository,
        BackupOptions(corpora=True, parallel=1, databases={"service": sqlite_url(elsewhere)}),
    )
    before = tree(home)
    for into_file in (True, False):
        count, died = 0, True
        while died:
            count += 1
            target = tmp_path / f"{into_file}-{count}" / "home"
            database = sqlite_url((target if into_file else target.parent) / "service.db")
            given = {} if into_file else {"service": database}
            died = dies(lambda target=target, given=given: _restored(repository, target, given), count)
            assert not target.exists() or _moved(tree(target), target, home) == before
            if not target.exists():
                _restored(repository, target, given)
            assert _moved(tree(target), target, home) == before
            assert not staging_of(target).exists()
            assert _keys(database) == {"ada"}
        assert count > 10


def _restored(repository: BackupRepository, target: Path, given: dict[str, str]) -> None:
    restore(repository, target, databases=given, parallel=1)


def _moved(found: dict[str, bytes], new: Path, old: Path) -> dict[str, bytes]:
    """What a home holds, as if it were where it was; JSON is compared by its meaning."""
    content = {path: data.replace(str(new).encode(), str(old).encode()) for path, data in found.items()}
    run = "runs/poems/1/run.json"
    return {**content, run: json.dumps(json.loads(content[run])).encode()}


def _keys(url: str) -> set[str]:
    database = open_state(url)
    try:
        return {key.name for key in ApiKeys(database).list()}
    finally:
        database.close()


def test_every_single_effect_of_a_prune_may_be_the_last(home: Path, tmp_path: Path) -> None:
    url, count, died = tmp_path / "backup", 0, True
    repository = open_repository(str(url), create=True)
    for number in range(3):
        (home / "runs" / "poems" / "1" / "notes").write_bytes(bytes([number]) * 5000)
        newest = make(home, repository, SINGLE).snapshot
    while died:
        count += 1
        copy = tmp_path / f"copy-{count}"
        shutil.copytree(url, copy)
        died = dies(lambda copy=copy: prune(open_repository(str(copy)), ONE), count)
        whole(open_repository(str(copy)))
        prune(open_repository(str(copy)), ONE)
        assert open_repository(str(copy)).ids() == [newest.id]
        assert set(open_repository(str(copy)).chunks()) == newest.chunks
    assert count > 4


def test_a_process_that_is_really_killed_loses_nothing(home: Path, tmp_path: Path, tree: Tree) -> None:
    url = str(tmp_path / "backup")
    (home / "runs" / "poems" / "1" / "large").write_bytes(bytes(range(256)) * 200_000)
    command = [sys.executable, "-m", "windlass.cli", "backup", "make", url, "--home", str(home), "--corpora"]
    for delay_s in (0.5, 0.9, 1.1, 1.3):
        killed_by_signal(command, delay_s)
        if (tmp_path / "backup" / "backup.json").exists():
            whole(open_repository(url))
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    before = tree(home)
    shutil.rmtree(home)
    back = [sys.executable, "-m", "windlass.cli", "restore", url, "--home", str(home), "--json"]
    for delay_s in (0.7, 0.9):
        killed_by_signal(back, delay_s)
        assert not home.exists() or tree(home) == before
    if not home.exists():
        subprocess.run(back, check=True, capture_output=True, timeout=120)
    assert tree(home) == before
    gone = [sys.executable, "-m", "windlass.cli", "backup", "prune", url, "--home", str(home), "--last", "1"]
    for delay_s in (0.7, 0.9):
        killed_by_signal(gone, delay_s)
        whole(open_repository(url))
