import json
from pathlib import Path

import pytest

from windlass.cli.main import main


def test_this_machine_is_a_cluster_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "show", "--home", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nodes"][0]["alive"]
    assert told["nodes"][0]["free"]["cores"] >= 1
    assert told["groups"] == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["cluster", "stop", "default/nobody"], "no group 'default/nobody'"),
        (["cluster", "show", "--address", "10.0.0.1:6379"], "--address needs --backend"),
        (["cluster", "show", "nowhere.toml"], "no such file"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--home", str(tmp_path)]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--detach"], "--detach needs --backend"),
        (
            ["--backend", "local", "--rendezvous", "127.0.0.1:1", "--nodes", "2"],
            "cannot be used with a cluster",
        ),
        (["--backend", "local", "--restarts", "2"], "--restarts cannot be used with --elastic"),
    ],
)
def test_options_that_do_not_go_with_a_cluster_are_refused(
    options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    job.write_text('name = "poems"\n')
    assert main(["train", str(job), "--home", str(tmp_path), *options]) == 2
    assert reason in capsys.readouterr().err


def test_a_ray_that_is_not_there_is_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="ray (the extra `ray`) is not installed")
    words = ["cluster", "show", "--backend", "ray", "--address", "127.0.0.1:1", "--home", str(tmp_path)]
    assert main(words) == 1
    assert "no Ray cluster at '127.0.0.1:1': [Errno 111]" in capsys.readouterr().err
