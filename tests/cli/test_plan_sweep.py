"""What `windlass plan sweep` refuses before Beam is even loaded."""

from pathlib import Path

import pytest

from windlass.cli.main import main

JOB = '[corpus]\nsources = ["text.txt"]\n[model]\nparameters = "1B"\n'


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "options.toml").write_text('modles = ["1B"]\n')
    return "job.toml"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "no machines given"),
        (["--fleet", "0xH100-SXM5"], "a fleet of no devices"),
        (["--fleet", "8xH100-SXM5", "--processes", "0"], "must be at least 1"),
        (["--fleet", "8xH100-SXM5", "--runner-option", "flink_master"], "write it as key=value"),
        (["--fleet", "8xH100-SXM5", "--runner", "flnk"], "invalid choice"),
        (["--options", "options.toml"], "unknown key 'modles'"),
        (["--options", "nowhere.toml"], "nowhere.toml: no such file"),
        (["--fleet", "8xH100-SXM5"], "text.txt"),
    ],
)
def test_a_usage_error_is_one_sentence(
    job: str, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "sweep", job, *more]) == 2
    assert said in capsys.readouterr().err
