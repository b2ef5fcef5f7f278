"""Fails a test that leaves a process running, and ends that process.

Every process that a test starts inherits MARK: the name of the test, or SHARED where a fixture of a wider
scope starts it. After a test, the children of this process, and the orphans that tools/reaper has adopted,
must be gone within GRACE_S unless they are shared. Shared ones are checked by tools/reaper, after the run.
"""

from __future__ import annotations

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


@pytest.fixture(autouse=True)
def nothing_left_running(request: pytest.FixtureRequest) -> Iterator[None]:
    name = request.node.nodeid
    before = _children(os.getpid())
    _mark(name)
    yield
    _mark(None)
    left = _left(name, before)
    until = time.monotonic() + GRACE_S
    while left and time.monotonic() < until:
        time.sleep(0.02)
        left = _left(name, before)
    if left:
        described = [_end(pid) for pid in sorted(left)]
        pytest.fail("the test left processes running:\n" + "\n".join(described), pytrace=False)


def _left(name: str, before: set[int]) -> set[int]:
    own = {pid for pid in _children(os.getpid()) - before if _mark_of(pid) in (name, None)}
    reaper = os.environ.get(REAPER)
    adopted = {pid for pid in _children(int(reaper)) if _mark_of(pid) == name} if reaper else set()
    return {pid for pid in own | adopted if _lives(pid)}


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
    try:
        process = psutil.Process(pid)
        words = f"{pid} {' '.join(process.cmdline())[:300]}"
        for one in [process, *process.children(recursive=True)]:
            one.kill()
    except psutil.Error:
        return f"{pid} (gone meanwhile)"
    return words


def _mark(value: str | None) -> None:
    if value is None:
        os.environ.pop(MARK, None)
    else:
        os.environ[MARK] = value
