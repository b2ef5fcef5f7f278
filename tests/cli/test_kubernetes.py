"""`windlass kubernetes`, and `windlass train --backend kubernetes` against a double of a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubernetes_double import LAUNCHER, Table, serving
from tests.cluster.kubernetes_node import running
from windlass.cli.main import main
from windlass.cluster.kubernetes.tenancy import NamespaceQuota, tenancy

JOB = """
name = "poems"
[corpus]
sources = ["{home}/text.txt"]
document = "paragraph"
[corpus.tokenizer]
kind = "char"
[model]
layers = 1
width = 16
heads = 1
context = 16
[train]
steps = {steps}
batch_sequences = 2
checkpoint_every = 5
[machine]
threads = 1
compile = "off"
[cluster]
image = "registry.example/windlass:1"
cores = 1
[cluster.env]
WINDLASS_HOME = "{home}"
PYTHONPATH = "{path}"
[[cluster.volumes]]
mount = "/windlass"
claim = "home"
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return written(tmp_path, steps=5)


def written(folder: Path, steps: int) -> Path:
    import windlass

    path = folder / "job.toml"
    source = Path(windlass.__file__).parents[1]
    path.write_text(JOB.format(home=folder / "home", path=source, steps=steps))
    return path


def test_what_is_rendered_passes_the_check(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "manifests")
    assert (
        main(["kubernetes", "render", str(job), "--tenant", "acme", "--quota", "cores=8", "--out", out]) == 0
    )
    assert main(["kubernetes", "render", str(job), "--tenant", "acme", "--serve", "--out", out]) == 0
    assert "00-cluster.yaml, 10-tenant.yaml, 20-training.yaml" in capsys.readouterr().out
    assert main(["kubernetes", "check", out, "--version", "1.37"]) == 0
    assert "21 objects are valid for Kubernetes 1.37" in capsys.readouterr().out


def test_what_would_be_refused_is_listed_and_exits_with_2(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["kubernetes", "render", str(job), "--out", str(tmp_path / "m")])
    path = tmp_path / "m" / "20-training.yaml"
    path.write_text(path.read_text().replace("restartPolicy: Never", "restartPolicy: OnFailure"))
    assert main(["kubernetes", "check", str(path), "--version", "1.37"]) == 2
    assert "backoffLimitPerIndex needs restartPolicy Never" in capsys.readouterr().err
    assert main(["kubernetes", "check", str(path), "--version", "1.37", "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["found"]) == 2


def test_manifests_can_be_printed_as_json(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "render", str(job), "--json"]) == 0
    kinds = [each["kind"] for each in json.loads(capsys.readouterr().out)]
    assert kinds == ["Service", "NetworkPolicy", "Job"]


def test_a_backup_is_of_the_home_on_the_volume(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(job.read_text().replace("WINDLASS_HOME =", "OTHER ="))
    assert main(["kubernetes", "render", str(job), "--backup", "s3://b/home", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)[-1]
    container = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["backup", "make", "s3://b/home", "--json"]
    assert {"name": "WINDLASS_HOME", "value": "/windlass"} in container["env"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["render"], "nothing to render"),
        (["render", "--quota", "cores=1", "JOB"], "need --tenant"),
        (["render", "--recorded", "JOB"], "need --tenant"),
        (["render", "--tenant", "a", "--quota", "core=1"], "did you mean 'cores'"),
        (["render", "--tenant", "a", "--quota", "memory=lots"], "is not a size"),
        (["render", "--tenant", "a", "--allow", "store:443"], "is not CIDR:PORT"),
        (["render", "JOB", "--backup", "s3://b", "--schedule", "daily"], "is not a schedule"),
        (["check", "/no/such/place"], "there is no such directory"),
        (["check", "JOB"], "without apiVersion, kind and metadata"),
    ],
)
def test_a_usage_error_is_reported(
    args: list[str], words: str, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["kubernetes", *(str(job) if a == "JOB" else a for a in args)]) == 2
    assert words in capsys.readouterr().err


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    """A double of a cluster, as the kubeconfig names it, in which tenant "default" is set up."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "text.txt").write_text(
        "\n\n".join(f"{i} ships on the sea\nand {i} more" for i in range(99))
    )
    table = Table()
    with serving(table) as url, running(table, tmp_path):
        for manifest in tenancy("default", NamespaceQuota()):
            plural = {"NetworkPolicy": "networkpolicies"}.get(
                manifest["kind"], manifest["kind"].lower() + "s"
            )
            table.create(plural, manifest)
        config: dict[str, Any] = {
            "current-context": "a",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "a", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": LAUNCHER}}],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield table


@pytest.mark.slow
def test_a_job_trains_in_a_cluster_and_its_pods_print_here(
    cluster: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "train",
        str(written(tmp_path, 5)),
        "--backend",
        "kubernetes",
        "--nodes",
        "2",
        "--workers",
        "1",
    ]
    assert main(command) == 0
    told = capsys.readouterr()
    assert "launched Job windlass-default/poems with 2 pods" in told.err
    assert "pods: 2 running" in told.err
    assert "registered as poems@1" in told.err
    assert "group default/poems is done" in told.out
    assert (tmp_path / "home" / "models").is_dir()


@pytest.mark.slow
def test_ctrl_c_stops_the_run_in_the_cluster_and_resume_continues(cluster: Table, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "windlass.cli",
        "train",
        str(written(tmp_path, 200)),
        "--backend",
        "kubernetes",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stderr is not None
    for line in process.stderr:
        if "step" in line:
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == 130, rest
    assert "run poems/1 stopped at step" in rest
    assert not cluster.all("jobs")
    assert not cluster.all("services")
    assert main(["train", str(tmp_path / "job.toml"), "--backend", "kubernetes", "--resume"]) == 0


@pytest.mark.slow
def test_a_run_may_be_left_alone(cluster: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(written(tmp_path, 5)), "--backend", "kubernetes", "--detach", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["group"], len(told["members"])) == ("default/poems", 1)
    assert len(cluster.all("jobs")) == 1


def test_a_tenant_that_was_not_set_up_is_reported_how(
    cluster: Table, job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(job), "--backend", "kubernetes", "--tenant", "nobody"]) == 2
    assert "render --tenant" in capsys.readouterr().err


def test_the_recorded_quota_of_a_tenant_becomes_that_of_its_namespace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, out = ["--home", str(tmp_path)], str(tmp_path / "m")
    assert main(["tenants", "make", "acme", "--quota", "cores=8,jobs=4,disk=10GiB", *home]) == 0
    asked = ["kubernetes", "render", "--tenant", "acme", "--recorded", "--quota", "pods=9"]
    assert main([*asked, "--out", out, *home]) == 0
    assert main(["kubernetes", "check", out, "--version", "1.37"]) == 0
    text = (tmp_path / "m" / "10-tenant.yaml").read_text()
    for line in ('requests.cpu: "8"', 'count/jobs.batch: "4"', 'requests.storage: "10Gi"', 'pods: "9"'):
        assert line in text
