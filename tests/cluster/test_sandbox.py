"""A tenant's processes on this machine: what they get, what they cannot reach, and what they are held to."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import windlass
from windlass.cluster.backend import Group, Isolation, Member, Resources, Restart, check, differs
from windlass.cluster.local.local_backend import LocalBackend
from windlass.cluster.process.cgroup_limits import TenantLimit, build_limits
from windlass.cluster.process.disk_usage import bytes_of, trim
from windlass.cluster.process.sandbox import (
    Unready,
    environment,
    others_can_execute,
    others_can_import,
    secrets,
)
from windlass.spec.errors import BadInput

GUEST = "windlass.lab.proofs.tenants.hostile_job"
UID = 291_337
"""Of nobody; free for a test."""
ROOT = os.geteuid() == 0
PYTHON = next((p for p in (sys.executable, "/usr/bin/python3") if others_can_execute(p)), "")
"""One that another user can execute, of our version."""
REACHABLE = others_can_import()
OTHER_USER = pytest.mark.skipif(
    not ROOT or not PYTHON or not REACHABLE,
    reason="only root can give processes another user id, which must reach a Python and the code of windlass",
)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that other users can reach, with the homes of two tenants in it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(windlass.__file__).parents[1]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the plane")
    monkeypatch.setenv("WINDLASS_CONTROL_KEY", "of the plane")
    monkeypatch.setenv("WINDLASS_STATE", "postgresql://of-the-plane")
    folder = Path(tempfile.mkdtemp(prefix="tenants-walls-"))
    folder.chmod(0o711)
    (folder / "tenants").mkdir(mode=0o711)
    backend = LocalBackend(folder / "cluster")
    try:
        yield folder
    finally:
        for standing in backend.survey().groups:
            backend.stop(standing.group.key)
            wait(lambda key=standing.group.key: backend.observe(key) is None)
        shutil.rmtree(folder, onerror=_unless_gone)


def isolation(place: Path, tenant: str = "acme", **more: object) -> Isolation:
    own = {"uid": UID, "python": PYTHON} if ROOT and PYTHON and REACHABLE else {}
    return Isolation(str(place / "tenants" / tenant), secrets=str(place / "secrets" / tenant), **own | more)  # type: ignore[arg-type]


def guest(around: Isolation, *deed: str, **more: object) -> Group:
    made = Group(deed[0], GUEST, deed, tenant="acme", restart=Restart("never"), grace_s=1.0, isolation=around)
    return replace(made, **more)  # type: ignore[arg-type]


def wait(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "it never came to it"
        time.sleep(0.02)


def run(place: Path, group: Group) -> Member:
    """Let a group come to its end."""
    backend = LocalBackend(place / "cluster")
    backend.launch(group)
    wait(lambda: (seen := backend.observe(group.key)) is not None and seen.over)
    standing = backend.observe(group.key)
    assert standing is not None
    return standing.members[0]


def left_of(uid: int) -> list[str]:
    return [p.name for p in Path("/proc").iterdir() if p.name.isdigit() and _owner(p) == uid]


def _unless_gone(_function: object, _path: str, error: tuple[type, BaseException, object]) -> None:
    """Ignore what the keeper of an ended group removes at the same time."""
    if not isinstance(error[1], FileNotFoundError):
        raise error[1]


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError:
        return -1


def test_of_the_machines_variables_only_harmless_ones_are_handed_on() -> None:
    machine = {"PATH": "/bin", "LC_ALL": "C", "AWS_ACCESS_KEY_ID": "x", "WINDLASS_CONTROL_KEY": "x",
               "PGPASSWORD": "x", "WINDLASS_STATE": "x", "KUBECONFIG": "x", "PATHOLOGY": "x"}  # fmt: skip
    found = environment(guest(Isolation("/h"), "work"), machine)
    own = {"HOME", "WINDLASS_HOME", "TMPDIR", "USER", "LOGNAME", "PYTHONSAFEPATH"}
    assert found.keys() == {"PATH", "LC_ALL"} | own
    assert found["HOME"] == "/h"


def test_secrets_are_files_that_no_other_user_can_read(tmp_path: Path) -> None:
    group = guest(Isolation("/h", secrets=str(tmp_path)), "work", secrets={"KEY": "store/key"})
    with pytest.raises(Unready, match="which does not exist"):
        secrets(group)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "key").write_text("sesame\n")
    (tmp_path / "store" / "key").chmod(0o644)
    with pytest.raises(Unready, match="other users can read"):
        secrets(group)
    (tmp_path / "store" / "key").chmod(0o600)
    assert secrets(group) == {"KEY": "sesame"}
    with pytest.raises(Unready):
        secrets(replace(group, secrets={"KEY": "../store/key"}))


def test_the_sandbox_may_change_while_a_group_runs() -> None:
    group = guest(Isolation("/h"), "work")
    assert not differs(group, replace(group, isolation=Isolation("/h", processes=9)))


def test_no_tenant_is_called_as_the_logs_of_all_are() -> None:
    with pytest.raises(BadInput, match="this name is reserved"):
        check(replace(guest(Isolation("/h"), "work"), tenant="logs"))


def test_a_ceiling_stands_above_all_members_of_a_tenant(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    (root / "user").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory pids")
    own.write_text("0::/user/shell\n")
    most = TenantLimit("here.acme", Resources(2.0, 1 << 30), 64)
    fence = build_limits("acme.g.0", Resources(1.0), tenant_limit=most, root=root, own=own)
    outer = root / "user" / "windlass" / "here.acme"
    assert fence.groups == (outer / "acme.g.0",)
    assert (outer / "memory.max").read_text() == str(1 << 30)
    assert (outer / "cpu.max").read_text() == "200000 100000"
    assert (outer / "pids.max").read_text() == (outer / "acme.g.0" / "pids.max").read_text() == "64"
    assert "+pids" in (outer / "cgroup.subtree_control").read_text()


def test_what_a_tenant_has_is_counted_once_and_not_through_links(tmp_path: Path) -> None:
    (tmp_path / "home" / "deep").mkdir(parents=True)
    (tmp_path / "other").write_bytes(os.urandom(1 << 20))
    (tmp_path / "home" / "deep" / "file").write_bytes(os.urandom(1 << 16))
    os.link(tmp_path / "home" / "deep" / "file", tmp_path / "home" / "again")
    (tmp_path / "home" / "link").symlink_to(tmp_path / "other")
    found = bytes_of(tmp_path / "home", None, 1 << 30)
    assert 1 << 16 <= found < 1 << 17
    assert bytes_of(tmp_path / "home", None, 1000) > 1000


def test_a_log_that_is_too_long_loses_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer:
        for number in range(2000):
            writer.write(b"line %d\n" % number)
        assert trim(log, 10_000)
        writer.write(b"the last line\n")
    lines = log.read_text().splitlines()
    assert "earlier lines were dropped" in lines[0]
    assert lines[-2:] == ["line 1999", "the last line"]
    assert log.stat().st_size <= 10_000
    assert not trim(log, 10_000)


@pytest.mark.slow
@OTHER_USER
def test_a_tenants_process_reaches_nothing_of_others(place: Path) -> None:
    foreign = place / "tenants" / "rival"
    foreign.mkdir(mode=0o700)
    (foreign / "weights").write_text("secret")
    (place / "cluster" / "rival" / "g").mkdir(parents=True)
    (place / "cluster" / "rival").chmod(0o700)
    (place / "cluster" / "rival" / "g" / "members.json").write_text("{}")
    targets = [foreign, foreign / "weights", place / "cluster" / "rival" / "g" / "members.json",
               place / "cluster" / "acme"]  # fmt: skip
    member = run(place, guest(isolation(place), "peek", *map(str, targets)))
    assert member.state == "done", Path(member.logs).read_text()
    home = place / "tenants" / "acme"
    told = json.loads((home / "peek.json").read_text())
    assert told["seen"] == []
    assert len(told["found"]) >= 3 * len(targets)
    assert (home.stat().st_uid, home.stat().st_mode & 0o777) == (UID, 0o700)
    assert Path(member.logs).stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@OTHER_USER
def test_a_bomb_of_forks_is_held_and_nothing_of_it_is_left(place: Path) -> None:
    member = run(place, guest(isolation(place, processes=24), "forks", "120"))
    told = json.loads((place / "tenants" / "acme" / "forks.json").read_text())
    assert told["made"] < 24
    assert told["refused"] > 0
    assert member.state == "done"
    wait(lambda: left_of(UID) == [])


@pytest.mark.slow
def test_a_tenant_that_fills_the_disk_is_ended(place: Path) -> None:
    member = run(place, guest(isolation(place, disk_bytes=16 << 20), "fill", "400"))
    for path in Path("/var/tmp").glob("windlass-guest-*"):
        path.unlink()
    assert member.state == "failed"
    assert member.reason == "was ended: tenant 'acme' has more than its 16.0 MiB on disk"


@pytest.mark.slow
def test_the_log_of_a_process_that_prints_without_end_stays_short(place: Path) -> None:
    member = run(place, guest(isolation(place, log_bytes=1 << 20), "chatter", "40"))
    assert member.state == "done"
    assert Path(member.logs).stat().st_size < 20 << 20


@pytest.mark.slow
@pytest.mark.skipif(not ROOT, reason="control groups need root here")
def test_all_processes_of_a_tenant_together_have_its_memory(place: Path) -> None:
    around = isolation(place, memory_bytes=96 << 20)
    probe = build_limits("probe", Resources(memory_bytes=1 << 30))
    probe.release()
    if not probe.groups:
        pytest.skip("no control group can be made here")
    member = run(place, guest(around, "eat", "200"))
    assert member.state == "failed"
    assert "more than its tenant's 96.0 MiB of memory" in member.reason
