"""What the job of a tenant may say: only what is the tenant's own, whatever way it is spelt."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.control.tenants.policy import RULES, restrict_job, texts
from windlass.control.tenants.tenant_paths import TenantPaths
from windlass.spec.errors import BadJob
from windlass.spec.job import Job
from windlass.spec.tenancy import Allowance, TenantResourceQuota

ROOT = "s3://bucket/acme"


@pytest.fixture
def ground(tmp_path: Path) -> TenantPaths:
    """Two tenants with homes side by side, and links that lead out of one of them."""
    for tenant in ("acme", "acme-two", "rival"):
        (tmp_path / "tenants" / tenant / "data").mkdir(parents=True)
        (tmp_path / "tenants" / tenant / "data" / "text.txt").write_text("words\n" * 9)
    home = tmp_path / "tenants" / "acme"
    (home / "leak").symlink_to(tmp_path / "tenants" / "rival")
    (home / "mixed").mkdir()
    (home / "mixed" / "own.txt").write_text("own\n")
    (home / "mixed" / "theirs.txt").symlink_to(tmp_path / "tenants" / "rival" / "data" / "text.txt")
    return TenantPaths("acme", home, ROOT)


def sourced(*sources: str) -> Job:
    return Job.model_validate({"name": "j", "corpus": {"sources": sources}})


def settled(job: Job, ground: TenantPaths, *, own_user: bool = False, **allowed: object) -> Job:
    return restrict_job(job, ground, Allowance.model_validate(allowed), own_user=own_user)


def test_every_text_of_a_job_has_a_rule() -> None:
    open_texts = {path for path, chosen in texts(Job) if not chosen}
    assert open_texts == RULES.keys() | {"cluster.env"}, "say in RULES what a tenant's job may put there"


def test_what_is_its_own_is_settled_below_its_home(ground: TenantPaths) -> None:
    job = settled(sourced("data", "data/*.txt", f"{ROOT}/texts/*.txt", "python:stdlib"), ground)
    home = str(ground.home)
    assert job.corpus.sources == (
        f"{home}/data", f"{home}/data/*.txt", f"{ROOT}/texts/*.txt", "python:stdlib",
    )  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        "/etc/passwd", "../rival/data/text.txt", "data/../../rival/data", "..", "~/x", "~root/x",
        "$HOME/x", "data/${USER}", "file:///etc/passwd", "file:/etc/passwd",
        "file:../rival/data", "leak/data/text.txt", "leak", "leak/*", "l*ak/data/text.txt", "*/data/*.txt",
        "mixed", "mixed/*.txt", "../*/data/*", "../acme-two/data", "/proc/self/environ", "a\x00b", "a\nb",
        "s3://bucket/acme2/x", "s3://bucket/rival", "s3://bucket", "s3://other/acme/x", "s3://bucket/*/x",
        "s3://buck*/acme/x", "s3://bucket/acme/../rival/x", "s3://bucket/acme/%2e%2e/rival",
        "s3://bucket//acme/x", "s3://bucket/acme/./x", "s3://bucket\\acme", "S3://bucket/acme/x",
        "s3a://bucket/acme/x", "s3://user@bucket/acme/x", "s3://bucket/acme#x", "gs://bucket/acme/x",
        "memory://acme/x", "http://127.0.0.1/acme", "simplecache::s3://bucket/acme/x",
        "zip://x::file:///etc/passwd", "local:///etc/passwd", "github://a:b@c/d", "s3://bucket/acme/..",
    ],
)  # fmt: skip
def test_what_is_not_its_own_is_refused_however_it_is_spelt(ground: TenantPaths, source: str) -> None:
    with pytest.raises(BadJob, match="tenant 'acme' may not use"):
        settled(sourced("data", source), ground)


@given(st.lists(st.sampled_from(["..", ".", "data", "leak", "*", "", "rival", "mixed", "~"]), max_size=6))
def test_no_chain_of_parts_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    tmp = tmp_path_factory.mktemp("chain")
    home = tmp / "acme"
    (home / "data").mkdir(parents=True)
    (tmp / "rival").mkdir()
    (home / "leak").symlink_to(tmp / "rival")
    try:
        found = TenantPaths("acme", home).check_files("/".join(parts), "[corpus] sources")
    except BadJob:
        return
    fixed = Path(found.split("*")[0])
    assert fixed.resolve().is_relative_to(home.resolve())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"checkpoint": {"store": "/var/spool"}}, "[checkpoint] store"),
        ({"corpus": {"store": "s3://bucket/rival"}}, "[corpus] store"),
        ({"corpus": {"cache": {"folder": "/tmp/cache"}}}, "[corpus.cache] folder"),
        ({"corpus": {"tokenizer": {"kind": "file", "path": "/etc/passwd"}}}, "[corpus.tokenizer] path"),
        ({"model": {"start_from": "../rival/runs/x/1/result"}}, "[model] start_from"),
        ({"model": {"start_from": "/srv/model"}}, "[model] start_from"),
        ({"cluster": {"namespace": "tenant-rival"}}, "[cluster] namespace"),
        ({"cluster": {"address": "10.0.0.1:6379"}}, "[cluster] address"),
        ({"cluster": {"service_account": "windlass-control"}}, "[cluster] service_account"),
        ({"cluster": {"volumes": [{"mount": "/m", "host": "/"}]}}, "[cluster.volumes] host"),
        ({"cluster": {"tolerations": [{"key": "reserved"}]}}, "[cluster.tolerations] key"),
        ({"serve": {"state": "sqlite:////srv/service.db"}}, "[serve] state"),
        ({"serve": {"access_log": "/var/log/x"}}, "[serve] access_log"),
        ({"serve": {"tls_key": "/etc/ssl/key.pem"}}, "[serve] tls_key"),
        ({"serve": {"engine_executable": "/bin/sh"}}, "[serve] engine_executable"),
        ({"serve": {"engine_args": "--trust-remote-code"}}, "[serve] engine_args"),
        ({"serve": {"traces": "http://169.254.169.254"}}, "[serve] traces"),
        ({"serve": {"host": "0.0.0.0"}}, "[serve] host"),
        ({"serve": {"privacy": {"prompt_log": "/x"}}}, "[serve.privacy] prompt_log"),
        ({"cluster": {"env": {"LD_PRELOAD": "x.so"}}}, "LD_PRELOAD"),
        ({"cluster": {"env": {"PYTHONPATH": "."}}}, "PYTHONPATH"),
        ({"cluster": {"env": {"WINDLASS_HOME": "/"}}}, "WINDLASS_HOME"),
        ({"cluster": {"env": {"ANYTHING": "1"}}}, "ANYTHING"),
        ({"cluster": {"secrets": {"LD_PRELOAD": "a/b"}}}, "LD_PRELOAD"),
        ({"cluster": {"priority": 1}}, "priority 1"),
    ],
)  # fmt: skip
def test_what_is_not_its_own_to_say_is_refused(
    ground: TenantPaths, table: dict[str, object], said: str
) -> None:
    with pytest.raises(BadJob) as refused:
        settled(Job.model_validate({"name": "j", **table}), ground)
    assert said in refused.value.message


def test_a_tenant_with_a_user_of_its_own_may_load_what_it_likes(ground: TenantPaths) -> None:
    job = Job.model_validate({"name": "j", "cluster": {"env": {"LD_PRELOAD": "x.so"}}})
    assert settled(job, ground, own_user=True) == job
    hidden = Job.model_validate({"name": "j", "cluster": {"env": {"WINDLASS_EXIT": "/x"}}})
    with pytest.raises(BadJob):
        settled(hidden, ground, own_user=True)


def test_a_tenant_with_a_quota_says_what_it_needs(ground: TenantPaths) -> None:
    with pytest.raises(BadJob, match=r"\[cluster\] memory: is missing"):
        settled(sourced("data"), ground, quota=TenantResourceQuota(memory=1 << 30))


def test_a_priority_that_was_granted_may_be_requested(ground: TenantPaths) -> None:
    job = Job.model_validate({"name": "j", "cluster": {"priority": 5}})
    assert settled(job, ground, priority=5) == job
