"""Killed after any side effect, run again: the same end, and no site ever had half a version."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.registry.versions import Registry
from windlass.sites.replication.artifact_store import open_depot
from windlass.sites.replication.puller import Puller
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

Net = Any
NewNet = Callable[..., Net]
some_kills = st.lists(st.tuples(st.booleans(), st.integers(1, 45)), min_size=1, max_size=6)
examples = settings(max_examples=12, suppress_health_check=list(HealthCheck))


class Killed(BaseException):
    """The process is no more."""


@contextmanager
def killed_after(count: int) -> Iterator[list[int]]:
    """Let so many side effects happen, then none any more."""
    left = [count]

    def mortal(effect: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **options: Any) -> Any:
            if left[0] <= 0:
                raise Killed
            done = effect(*args, **options)
            left[0] -= 1
            if left[0] <= 0:
                raise Killed
            return done

        return act

    with pytest.MonkeyPatch.context() as patch:
        effects = [
            (StoreDir, "write"),
            (StoreDir, "create"),
            (StoreDir, "remove"),
            (Path, "rename"),
            (Path, "unlink"),
        ]
        for owner, name in (*effects, (Puller, "_get"), (os, "replace")):
            patch.setattr(owner, name, mortal(getattr(owner, name)))
        yield left


def whole(net: Net) -> None:
    """What any site or the depot has, it has all of."""
    for version in Registry(net.folder / "east").versions("poems"):
        verify(StoreDir(version.path), version.manifest)
    if (Path(net.rule.depot) / "depot.json").exists():
        depot = open_depot(net.rule.depot)
        held = set(depot.repository.chunks())
        for stored in depot.versions().values():
            assert stored.chunks <= held


def attempt(net: Net, work: Callable[[], object], count: int) -> bool:
    """Do `work`, killed after so many effects; say whether it came to its end."""
    try:
        with killed_after(count):
            work()
    except Killed:  # the claims of a process that has ended are dead at once, but this one has not
        shutil.rmtree(Path(net.rule.depot) / "claims", ignore_errors=True)
        return False
    return True


@given(kills=some_kills)
@examples
def test_both_sides_may_die_anywhere(new_net: NewNet, kills: list[tuple[bool, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        net = new_net(Path(folder), keep=2)
        net.register(promote=True)
        net.publish()
        for is_site, count in kills:
            net.register()
            attempt(net, net.bring if is_site else net.publish, count)
            whole(net)
        net.publish()
        net.bring()
        whole(net)
        wanted = {1, len(kills), len(kills) + 1}
        assert net.has("east") == {key: d for key, d in net.has().items() if int(key[6:]) in wanted}
        depot = open_depot(net.rule.depot)
        listed = {chunk for stored in depot.versions().values() for chunk in stored.chunks}
        assert set(depot.repository.chunks()) == listed
        assert not depot.is_marked
        assert not list((net.folder / "east").rglob("*.part"))


@pytest.mark.parametrize("side", ["publish", "bring"])
def test_every_single_effect_may_be_the_last(side: str, new_net: NewNet, tmp_path: Path) -> None:
    """From the first effect on, one by one, until the work gets to its end undisturbed."""
    count = 0
    while True:
        count += 1
        (tmp_path / str(count)).mkdir()
        net = new_net(tmp_path / str(count), keep=1)
        for _ in range(2):
            net.register()
            Registry(net.home).promote("poems")
        if side == "bring":
            net.publish()
        survived = attempt(net, getattr(net, side), count)
        whole(net)
        net.publish()
        net.bring()
        assert net.has("east") == net.has()
        if survived:
            break
    assert count > 8
