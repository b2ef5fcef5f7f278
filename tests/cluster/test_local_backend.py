"""What this machine does as a cluster beyond what every cluster does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import windlass
from windlass.cluster.backend import Group, Resources, Restart, group_bytes
from windlass.cluster.local.local_backend import LocalBackend
from windlass.cluster.local.local_scheduler import LocalMachine, assign, free_of
from windlass.cluster.local.local_state import AssignedCores, DesiredGroup, GroupFolder, Written
from windlass.cluster.process.cgroup_limits import build_limits
from windlass.cluster.process.process_identity import birth_of, kill_rest, runs, signal_one
from windlass.cluster.process.process_supervisor import MemberRecord
from windlass.cluster.process.restarts import decide

QUICK = Restart(back_off_s=0.05, max_back_off_s=5.0)
MACHINE = LocalMachine((0, 1, 2, 3), 8 << 30, (0, 1))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    here = f"{Path(__file__).parent}:{Path(windlass.__file__).parents[1]}"
    monkeypatch.setenv("PYTHONPATH", here)
    root = tmp_path / "cluster"
    try:
        yield root
    finally:
        backend = LocalBackend(root)
        for standing in backend.survey().groups:
            backend.stop(standing.group.key)
            wait(lambda key=standing.group.key: backend.observe(key) is None)


def group(name: str, *args: str, **more: object) -> Group:
    return replace(Group(name, "made_up_member", args, restart=QUICK, grace_s=1.0), **more)  # type: ignore[arg-type]


def wait(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "it never came to it"
        time.sleep(0.02)


def record_of(root: Path, name: str, index: int = 0) -> MemberRecord:
    return GroupFolder(root, "default", name).written().records[index]


def kill_daemon(root: Path, name: str) -> None:
    folder = GroupFolder(root, "default", name)
    os.kill(int(folder.daemon_lock.read_text()), signal.SIGKILL)
    wait(lambda: not folder.has_daemon())


@pytest.mark.slow
def test_members_outlive_who_launched_them(root: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from windlass.cluster.backend import group_from\n"
        "from windlass.cluster.local.local_backend import LocalBackend\n"
        "LocalBackend(Path(sys.argv[1])).launch(group_from(sys.argv[2].encode()))\n"
    )
    written = group_bytes(group("g", "sleep")).decode()
    subprocess.run([sys.executable, "-c", script, str(root), written], check=True)
    backend = LocalBackend(root)
    wait(lambda: backend.observe("default/g").running == 1)  # type: ignore[union-attr]
    assert runs(record_of(root, "g").pid, record_of(root, "g").birth)


@pytest.mark.slow
def test_members_outlive_their_daemon_and_are_adopted_by_the_next(root: Path) -> None:
    counted = root / "starts-0"
    backend, wanted = LocalBackend(root), group("g", "fail", "0", str(root))
    backend.launch(wanted)
    wait(lambda: backend.observe("default/g").running == 1 and counted.exists())  # type: ignore[union-attr]
    before = record_of(root, "g")
    kill_daemon(root, "g")
    assert backend.observe("default/g").members[0].state == "running"  # type: ignore[union-attr]
    backend.launch(wanted)
    wait(lambda: GroupFolder(root, "default", "g").has_daemon())
    assert record_of(root, "g") == before
    os.kill(before.pid, signal.SIGKILL)  # the adopted one is watched
    wait(lambda: record_of(root, "g").restarts == 1 and record_of(root, "g").state == "running")
    assert record_of(root, "g").pid != before.pid
    wait(lambda: counted.read_text() == "2")  # once by the first daemon, once after its death


@pytest.mark.slow
def test_a_member_that_exited_unwatched_has_left_its_exit_code(root: Path) -> None:
    backend, wanted = LocalBackend(root), group("g", "until", str(root / "go"), "0")
    backend.launch(wanted)
    wait(lambda: backend.observe("default/g").running == 1)  # type: ignore[union-attr]
    pid = record_of(root, "g").pid
    kill_daemon(root, "g")
    (root / "go").touch()
    wait(lambda: not birth_of(pid))
    assert backend.observe("default/g").members[0].state == "lost"  # type: ignore[union-attr]
    backend.launch(wanted)
    wait(lambda: backend.observe("default/g").over)  # type: ignore[union-attr]
    member = backend.observe("default/g").members[0]  # type: ignore[union-attr]
    assert (member.state, member.exit_code) == ("done", 0)


@pytest.mark.slow
def test_what_a_member_started_ends_with_it(root: Path, tmp_path: Path) -> None:
    backend, note = LocalBackend(root), tmp_path / "child"
    backend.launch(group("g", "child", str(note)))
    wait(lambda: note.exists() and bool(note.read_text()))
    child = int(note.read_text())
    backend.stop("default/g")
    wait(lambda: backend.observe("default/g") is None)
    wait(lambda: not birth_of(child))


@pytest.mark.slow
def test_a_member_that_takes_more_memory_than_it_may_fails_and_says_so(root: Path) -> None:
    backend = LocalBackend(root)
    limits = Resources(memory_bytes=100 << 20)
    backend.launch(group("g", "eat", "200", resources=limits, restart=Restart("never")))
    wait(lambda: backend.observe("default/g").over)  # type: ignore[union-attr]
    member = backend.observe("default/g").members[0]  # type: ignore[union-attr]
    fence = build_limits("probe", limits)
    fence.release()
    if fence.groups:
        assert member.reason == "was killed by the kernel: it used more than its 100.0 MiB of memory"
    else:
        assert "out of memory" in Path(member.logs).read_text()
    assert member.state == "failed"


@pytest.mark.slow
def test_members_stay_on_their_own_cores(root: Path, tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this machine has one core")
    backend = LocalBackend(root)
    wanted = group("g", "tell", str(tmp_path / "told"), count=2, resources=Resources(cores=1))
    backend.launch(wanted)
    files = [tmp_path / f"told-{index}" for index in range(2)]
    wait(lambda: all(file.exists() for file in files))
    told = [json.loads(file.read_text())["cores"] for file in files]
    assert [len(each) for each in told] == [1, 1]
    assert told[0] != told[1]


@pytest.mark.slow
def test_a_group_that_waits_begins_when_another_goes(root: Path) -> None:
    backend, all_cores = LocalBackend(root), Resources(cores=float(len(os.sched_getaffinity(0))))
    backend.launch(group("first", "sleep", resources=all_cores))
    wait(lambda: backend.observe("default/first").running == 1)  # type: ignore[union-attr]
    backend.launch(group("second", "sleep", resources=all_cores))
    wait(lambda: "are free" in backend.observe("default/second").members[0].reason)  # type: ignore[union-attr]
    backend.stop("default/first")
    wait(lambda: backend.observe("default/second").running == 1)  # type: ignore[union-attr]


def test_a_number_that_another_process_has_is_not_ours(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        assert runs(stranger.pid, birth_of(stranger.pid))
        assert not runs(stranger.pid, "another boot/7")
        signal_one(stranger.pid, "another boot/7", signal.SIGKILL)
        kill_rest(stranger.pid, "another boot/7")
        folder = GroupFolder(tmp_path, "default", "g")
        folder.want(DesiredGroup(group("g", "sleep")))
        folder.write(Written((MemberRecord(0, "running", pid=stranger.pid, birth="another boot/7"),)))
        seen = LocalBackend(tmp_path).observe("default/g")
        assert seen is not None
        assert seen.members[0].state == "lost"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert birth_of(stranger.pid) == ""


def test_a_gang_gets_all_its_slots_or_none() -> None:
    room = assign(MACHINE, [], Resources(cores=1.5), range(3), gang=True)
    assert room.assignments == {}
    assert room.reason == "no capacity for 1 of 3 members here: 1.5 cores are requested, 1 of 4 are free"
    assert list(assign(MACHINE, [], Resources(cores=1.5), range(3), gang=False).assignments) == [0, 1]


def test_slots_share_no_core_and_no_gpu_while_there_are_others() -> None:
    taken = [AssignedCores((0, 1), 2.0, 1 << 30, (0,))]
    room = assign(MACHINE, taken, Resources(cores=1, memory_bytes=3 << 30, gpus=1), [0], gang=True)
    assert room.assignments[0] == AssignedCores((2,), 1.0, 3 << 30, (1,))
    assert free_of(MACHINE, [*taken, room.assignments[0]]) == Resources(1.0, 4 << 30, 0)


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (Resources(memory_bytes=9 << 30), "9.0 GiB of memory are requested, 8.0 GiB are free"),
        (Resources(gpus=3), "3 GPUs are requested, 2 of 2 are free"),
    ],
)
def test_what_is_missing_is_said(need: Resources, words: str) -> None:
    assert words in assign(MACHINE, [], need, [0], gang=True).reason


@pytest.mark.parametrize(
    ("code", "restarts", "ran_s", "state", "wait_s"),
    [
        (1, 0, 1, "pending", 1.0),
        (1, 2, 1, "pending", 4.0),
        (-9, 2, 100, "pending", 1.0),
        (1, 3, 1, "failed", 0),
    ],
)
def test_pauses_double_and_begin_anew_after_a_long_life(
    code: int, restarts: int, ran_s: float, state: str, wait_s: float
) -> None:
    found = decide(Restart(), code=code, restarts=restarts, ran_s=ran_s)
    assert (found.state, found.wait_s) == (state, wait_s)


def test_control_groups_of_version_2_get_the_limits(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "user").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory")
    own.write_text("0::/user/shell\n")
    fence = build_limits("t.g.0", Resources(1.5, 1 << 30), (0, 1), root=root, own=own)
    made = root / "user" / "windlass" / "t.g.0"
    assert fence.groups == (made,)
    assert (made / "memory.max").read_text() == str(1 << 30)
    assert (made / "cpu.max").read_text() == "150000 100000"
    assert (root / "user" / "windlass" / "cgroup.subtree_control").read_text() == "+cpu +memory"
    (made / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert "more than its 1.0 GiB" in fence.overrun


def test_where_no_control_group_can_be_made_the_process_itself_is_limited(tmp_path: Path) -> None:
    import resource

    root = tmp_path / "cgroup"
    root.mkdir()
    (root / "memory").write_text("not a directory")
    fence = build_limits("t.g.0", Resources(memory_bytes=64 << 20), root=root, own=tmp_path / "none")
    assert fence.groups == ()
    process = subprocess.Popen(["sleep", "60"])
    try:
        fence.apply_to(process.pid)
        assert resource.prlimit(process.pid, resource.RLIMIT_DATA) == (64 << 20, 64 << 20)
    finally:
        process.kill()
        process.wait()
