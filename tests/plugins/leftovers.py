"""Fails a test that leaves a process running, and ends that process.

Every process that a test starts inherits MARK: the name of the test, or SHARED where a fixture of a wider
scope starts it. After a test, the children of this process, and the orphans that tools/reaper has adopted,
must be gone within GRACE_S. A test with a fixture of a wider scope may leave processes to it: where that is
a module, it is checked at the module's end; where it is the session, by tools/reaper after the run.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

MARK = "WINDLASS_TEST"
REAPER = "WINDLASS_REAPER"
"""Environment variable with the process id of tools/reaper, where it runs the tests."""
SHARED = "shared"
GRACE_S = 20.0
HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker")
"""Started once by a library, on first use, for as long as the process lives."""


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    """Mark what a fixture of a wider scope starts."""
    former = os.environ.get(MARK)
    if fixturedef.scope != "function":
        os.environ[MARK] = SHARED
    try:
        return (yield)
    finally:
        _mark(former)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    _mark(f"{SHARED} by {item.nodeid}" if "session" in _wider_scopes(item) else item.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    try:
        return (yield)
    finally:
        _mark(None)
        if nextitem is None or nextitem.path != item.path:
            _check(item.nodeid.partition("::")[0])
        elif not _wider_scopes(item):
            _check(item.nodeid)


def _wider_scopes(item: pytest.Item) -> set[str]:
    """Return the scopes of the test's fixtures that outlive it; fixtures of pytest itself do not count."""
    assert isinstance(item, pytest.Function)
    found = [defs[-1] for defs in item._fixtureinfo.name2fixturedefs.values()]
    return {each.scope for each in found if each.baseid} - {"function"}


def _check(name: str) -> None:
    """Fail if processes of a test, or of any test of a module, are still there."""
    left = _left(name)
    until = time.monotonic() + GRACE_S
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = _left(name)
    if left:
        described = [_end(pid) for pid in sorted(left)]
        pytest.fail("processes are still running after the test:\n" + "\n".join(described), pytrace=False)


def _left(name: str) -> set[int]:
    parents = [os.getpid(), int(os.environ.get(REAPER, "0"))]
    found = {pid for parent in parents if parent for pid in _children(parent)}
    return {pid for pid in found if (_mark_of(pid) or "").startswith(name) and _lives(pid)}


def _children(pid: int) -> set[int]:
    try:
        listed = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # a thread that ended meanwhile
        return _children(pid) if psutil.pid_exists(pid) else set()
    return {int(word) for text in listed for word in text.split()}


def _mark_of(pid: int) -> str | None:
    try:
        return psutil.Process(pid).environ().get(MARK)
    except psutil.Error:
        return None


def _lives(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return not any(helper in word for word in process.cmdline() for helper in HELPERS)
    except psutil.Error:
        return False


def _end(pid: int) -> str:
    """Kill a process with all its children; return what it was."""
    words = str(pid)
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        words = f"{pid} {' '.join(process.cmdline())[:300]} (started by {_mark_of(pid)})"
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    return words


def _mark(value: str | None) -> None:
    if value is None:
        os.environ.pop(MARK, None)
    else:
        os.environ[MARK] = value
