"""Where tenants live: homes, users, secrets, and what admission is told of them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from windlass.backup.contents import look
from windlass.cluster.backend import Group
from windlass.control.scheduler.snapshot import QuotaLimit as Room
from windlass.control.tenants.impersonate import as_user, inside, sound
from windlass.control.tenants.tenant_registry import TenantRegistry, keep_secret, users_from
from windlass.serve.records.audit_log import Actor
from windlass.spec.errors import BadInput, BadJob, InUse, NotFound
from windlass.spec.tenancy import Allowance, TenantResourceQuota, quota_from

ME = Actor("", "test")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user for files")


@pytest.fixture
def registry(tmp_path: Path) -> TenantRegistry:
    return TenantRegistry(tmp_path, users=range(291_600, 291_602))


def test_what_is_recorded_of_a_tenant_is_what_admission_goes_by(registry: TenantRegistry) -> None:
    quota = TenantResourceQuota(cores=8, memory=1 << 30, gpus=0, jobs=4)
    registry.allow("acme", lambda _: Allowance(quota=quota, weight=2.0, priority=3), "test")
    share = registry.shares()["acme"]
    assert (share.weight, share.quota, share.max_jobs, share.max_priority) == (
        2.0, Room(8, 1 << 30, 0), 4, 3,
    )  # fmt: skip
    registry.allow("acme", lambda old: old.model_copy(update={"weight": 5.0}), "test")
    assert registry.context("acme").allowance.quota == quota
    assert registry.shares()["default"].max_priority is None


def test_every_tenant_has_a_user_of_its_own_for_ever(registry: TenantRegistry) -> None:
    first, second = registry.context("acme").uid, registry.context("rival").uid
    assert (first, second) == (291_600, 291_601)
    registry.tenants.make("acme", ME)
    registry.tenants.remove("acme", ME)
    with pytest.raises(BadInput, match="no user id is left"):
        registry.context("third")
    assert TenantRegistry(registry.home, users=registry.users).context("acme").uid == first
    assert registry.context("default").uid is None


def test_the_sandbox_follows_from_a_tenants_allowance(registry: TenantRegistry) -> None:
    allowed = Allowance(
        quota=TenantResourceQuota(cores=2, memory=9, disk=7, log=4096, processes=64), credentials={"A": "s/k"}
    )
    registry.allow("acme", lambda _: allowed, "test")
    isolation = registry.context("acme").isolation
    assert isolation is not None
    amounts = (isolation.cores, isolation.memory_bytes, isolation.disk_bytes)
    assert (*amounts, isolation.log_bytes, isolation.processes) == (
        2, 9, 7, 4096, 64,
    )  # fmt: skip
    assert isolation.credentials == {"A": "s/k"}
    on_kubernetes = registry.isolated(lambda t: Group("g", "m", tenant=t), lambda t: t, "kubernetes")("acme")
    assert (on_kubernetes.isolation, on_kubernetes.secrets) == (None, {"A": "s/k"})


def test_a_tenant_that_has_filled_its_disk_begins_nothing(registry: TenantRegistry) -> None:
    registry.allow("acme", lambda _: Allowance(quota=TenantResourceQuota(disk=1 << 16)), "test")
    context = registry.context("acme")
    context.home.mkdir(parents=True)
    context.check_disk()
    (context.home / "file").write_bytes(os.urandom(1 << 17))
    with pytest.raises(InUse, match=r"more than its 64\.0 KiB on disk"):
        context.check_disk()


def test_a_secret_is_kept_for_one_reader_and_in_no_backup(tmp_path: Path) -> None:
    keep_secret(tmp_path, "acme", "store/key", b"sesame\n")
    path = tmp_path / "secrets" / "acme" / "store" / "key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
    assert look(tmp_path).loose == []
    for wrong in ("../key", "store/..", "key", "/etc/x", "store/key/deep"):
        with pytest.raises(BadJob):
            keep_secret(tmp_path, "acme", wrong, b"x")
    keep_secret(tmp_path, "acme", "store/key", None)
    assert not path.exists()


def test_an_allowance_names_secrets_and_holds_none() -> None:
    with pytest.raises(ValueError, match="must name a secret"):
        Allowance(credentials={"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCY"})
    for root in ("s3://bucket/../x", "s3://user@bucket/x", "http://x/y", "relative", "s3://b/%2e%2e"):
        with pytest.raises(ValueError, match="root must be"):
            Allowance(root=root)
    assert quota_from("cores=8, memory=16GiB") == {"cores": "8", "memory": "16GiB"}


@AS_ROOT
def test_a_home_is_closed_to_other_users_before_tenants_get_theirs(registry: TenantRegistry) -> None:
    for parent in registry.home.parents:
        if not parent.stat().st_mode & 0o001:
            with pytest.raises(BadInput, match=r"cannot traverse|cannot execute|cannot read"):
                registry.prepare()
            return
    pytest.skip("every directory above the scratch place is open here")


@AS_ROOT
def test_files_are_read_with_the_rights_of_whom_they_are_read_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    with as_user(291_600), pytest.raises(PermissionError):
        secret.read_text()
    assert secret.read_text() == "of root"


def test_what_leads_out_of_a_home_is_not_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    (tmp_path / "other").write_text("x")
    assert inside(home / "run", home) == (home / "run").resolve()
    sound(home / "run", home)
    (home / "run" / "journal.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(NotFound):
        sound(home / "run", home)
    (home / "run" / "journal.jsonl").unlink()
    os.mkfifo(home / "run" / "journal.jsonl")
    with pytest.raises(NotFound):
        sound(home / "run", home)


@pytest.mark.parametrize("text", ["0-9", "5000", "9000-8000", "a-b", "1000-99999999999"])
def test_a_range_of_users_is_of_nobodys(text: str) -> None:
    with pytest.raises(BadInput):
        users_from(text)
