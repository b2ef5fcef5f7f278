"""What is submitted, as a backend runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from windlass.cluster.backend import Resources, check, differs
from windlass.control.plane.job_to_group import groups_for, home_of_tenant, job_of, submission_of, train_need
from windlass.control.plane.queued_job import JobEntry, ResourceNeeds
from windlass.control.tenants.tenant_registry import TenantContext
from windlass.spec.errors import BadInput, BadJob
from windlass.spec.protocol.queue import QueueBody
from windlass.spec.tenancy import Allowance

JOB = """
name = "poems.v1"
[corpus]
sources = ["poems.txt"]
[layout]
dp = 4
[cluster]
nodes = 2
cores = 1.5
memory = "1GiB"
gpus = 1
[cluster.node_selector]
zone = "a"
"""


def ada(home: Path) -> TenantContext:
    return TenantContext("ada", home_of_tenant(home, "ada"), Allowance())


def entry_of(home: Path, text: str = JOB, **more: object) -> JobEntry:
    asked = submission_of(QueueBody(job=text), ada(home), "tester")
    entry = JobEntry("abc123", "ada", asked.name, asked.kind, asked.text, asked.need, "tester", 1.0)
    return replace(entry, members=asked.need.members, **more)  # type: ignore[arg-type]


def test_a_member_has_room_for_the_workers_of_its_machine(tmp_path: Path) -> None:
    need = entry_of(tmp_path).need
    assert need == ResourceNeeds(
        members=2, cores=3.0, memory_bytes=2 << 30, gpus=2, node_selector={"zone": "a"}
    )


def test_a_worker_that_says_nothing_takes_a_core(tmp_path: Path) -> None:
    assert train_need(job_of('name = "a"\n', tmp_path)).cores == 1.0


def test_only_who_says_how_few_will_do_may_run_with_fewer(tmp_path: Path) -> None:
    assert entry_of(tmp_path).need.min_members is None
    assert entry_of(tmp_path, JOB + "[elastic]\nmin_workers = 1\n").need.min_members == 1
    assert entry_of(tmp_path, JOB + "[elastic]\nmin_workers = 3\n").need.min_members is None


def test_a_train_job_is_a_group_that_any_backend_takes(tmp_path: Path) -> None:
    entry = entry_of(tmp_path)
    group = check(groups_for(tmp_path, "local")(entry))
    assert (group.key, group.count) == (entry.group_key, 2)
    assert group.resources == Resources(3.0, 2 << 30, 2)
    assert group.args[-2:] == ("--note", entry.group)
    assert group.environment["WINDLASS_HOME"] == str(tmp_path / "tenants" / "ada")
    job = job_of(group.environment["WINDLASS_JOB"], Path("/elsewhere"))
    assert job.corpus.sources == (str(tmp_path / "tenants" / "ada" / "poems.txt"),)
    assert (job.layout.dp, job.cluster.nodes) == (4, 1)


def test_a_group_is_the_same_whatever_its_owner_changes(tmp_path: Path) -> None:
    """Else a backend would refuse to launch again what it has."""
    group_of = groups_for(tmp_path, "local")
    entry = entry_of(tmp_path)
    changed = replace(entry, priority=9, phase="running", attempts=7, members=1, reason="x")
    assert not differs(group_of(entry), group_of(changed))


def test_two_jobs_of_one_name_are_two_groups(tmp_path: Path) -> None:
    group_of = groups_for(tmp_path, "local")
    entry = entry_of(tmp_path)
    assert group_of(entry).name != group_of(replace(entry, uid="other")).name


def test_on_kubernetes_the_home_is_on_a_volume_of_the_pods(tmp_path: Path) -> None:
    volume = '[[cluster.volumes]]\nmount = "/windlass"\nclaim = "home"\n'
    group = groups_for(tmp_path, "kubernetes")(entry_of(tmp_path, JOB + volume))
    assert group.environment["WINDLASS_HOME"] == "/windlass"
    assert "--note" in group.args
    with pytest.raises(BadJob, match="needs a home on a volume"):
        groups_for(tmp_path, "kubernetes")(entry_of(tmp_path))


def test_a_service_answers_where_its_backend_lets_callers_in(tmp_path: Path) -> None:
    volumes = [{"mount": "/windlass", "claim": "home"}]
    body = QueueBody(service={"model": "poems", "port": 8001, "cluster": {"volumes": volumes}})
    asked = submission_of(body, ada(tmp_path), "tester")
    entry = JobEntry(
        "abc123", "ada", asked.name, asked.kind, asked.text, asked.need, "tester", 1.0, members=1
    )
    here, pod = (groups_for(tmp_path, backend)(entry) for backend in ("local", "kubernetes"))
    assert (here.port, pod.port) == (8001, 8001)
    assert here.args[:4] == ("serve", "poems", "--host", "127.0.0.1")
    assert here.environment["WINDLASS_HOME"] == str(tmp_path / "tenants" / "ada")
    assert pod.args[:4] == ("serve", "poems", "--host", "0.0.0.0")
    assert (pod.environment["WINDLASS_HOME"], pod.args[-1]) == ("/windlass", "/windlass")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (JOB.replace("nodes = 2", "nodes = 3"), "cannot share equally"),
        ('name = "a"\n[model]\nfamily = "ngram"\n[cluster]\nnodes = 2\n', "uses one node"),
        ("x = = 1", "not valid TOML"),
    ],
)
def test_what_cannot_be_run_is_refused_when_it_is_submitted(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadJob, match=said):
        submission_of(QueueBody(job=text), ada(tmp_path), "tester")


def test_nothing_at_all_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="give either 'job'"):
        submission_of(QueueBody(), ada(tmp_path), "tester")


def test_the_default_tenant_lives_in_the_home_itself(tmp_path: Path) -> None:
    assert home_of_tenant(tmp_path, "default") == tmp_path
    assert home_of_tenant(tmp_path, "ada") == tmp_path / "tenants" / "ada"
