"""Killed after any side effect, run again: the same end, and no snapshot was ever broken."""

from __future__ import annotations

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

from windlass.operate.backup import restore as restoring
from windlass.operate.backup.make import Options, make
from windlass.operate.backup.prune import prune
from windlass.operate.backup.restore import restore, staging_of
from windlass.operate.backup.vault import Vault, open_vault
from windlass.spec.backup import Keep
from windlass.store.place import Place

pytestmark = pytest.mark.slow

ONE = Keep(last=1, daily=0, weekly=0, monthly=0)
SINGLE = Options(corpora=True, parallel=1)
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
        for owner, name in ((Place, "write"), (Place, "create"), (Place, "remove"), (Path, "rename")):
            patch.setattr(owner, name, mortal(getattr(owner, name)))
        patch.setattr(restoring, "_bring", mortal(restoring._bring))
        patch.setattr(Path, "rmdir", mortal(Path.rmdir))
        yield


def whole(vault: Vault) -> None:
    """Every snapshot that is listed has all that it lists."""
    held = set(vault.chunks())
    for id_ in vault.ids():
        snapshot = vault.read(id_)
        assert snapshot.chunks <= held
        for chunk in snapshot.chunks:
            vault.get(chunk)


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
                whole(open_vault(url))

        tried(lambda: make(copy, open_vault(url, create=True), SINGLE), kills, check)
        before = tree(copy)
        shutil.rmtree(copy)
        restore(open_vault(url), copy)
        assert tree(copy) == before


@given(kills=some_kills)
@examples
def test_prune_may_die_anywhere(home: Path, kills: list[int]) -> None:
    with stage(home) as (copy, url):
        vault = open_vault(url, create=True)
        for number in range(4):
            (copy / "runs" / "poems" / "1" / "notes").write_bytes(bytes([number]) * 5000)
            newest = make(copy, vault, SINGLE).snapshot
        tried(lambda: prune(open_vault(url), ONE), kills, lambda: whole(vault))
        assert vault.ids() == [newest.id]
        assert set(vault.chunks()) == newest.chunks


@given(kills=some_kills)
@examples
def test_restore_may_die_anywhere(home: Path, tree: Tree, kills: list[int]) -> None:
    with stage(home) as (copy, url):
        vault = open_vault(url, create=True)
        make(copy, vault, SINGLE)
        before = tree(copy)
        shutil.rmtree(copy)

        def work() -> None:
            if not copy.exists():
                restore(vault, copy, parallel=1)

        def check() -> None:
            assert not copy.exists() or tree(copy) == before  # all of it, or nothing
            whole(vault)

        tried(work, kills, check)
        assert tree(copy) == before
        assert not staging_of(copy).exists()


def test_a_process_that_is_really_killed_loses_nothing(home: Path, tmp_path: Path, tree: Tree) -> None:
    url = str(tmp_path / "backup")
    (home / "runs" / "poems" / "1" / "large").write_bytes(bytes(range(256)) * 200_000)
    command = [sys.executable, "-m", "windlass.cli", "backup", "make", url, "--home", str(home), "--corpora"]
    for delay_s in (0.5, 0.9, 1.1, 1.3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(delay_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if (tmp_path / "backup" / "backup.json").exists():
            whole(open_vault(url))
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    before = tree(home)
    shutil.rmtree(home)
    back = [sys.executable, "-m", "windlass.cli", "restore", url, "--home", str(home), "--json"]
    subprocess.run(back, check=True, capture_output=True, timeout=120)
    assert tree(home) == before
