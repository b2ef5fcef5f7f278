"""What `windlass plan` shows: the settings that training will really use, and the cut as a picture."""

import json
from pathlib import Path

import pytest

from windlass.cli.main import main

JOB = """
[corpus]
sources = ["rows.jsonl"]
clean.duplicates = "exact"
tokenizer.vocabulary = 300
[model]
layers = 6
width = 32
heads = 2
context = 16
[train]
steps = 40
batch_sequences = 16
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_HOME", raising=False)
    rows = [{"text": f"Story {i}: the rope of the windlass turned {i * i} times."} for i in range(400)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "job.toml").write_text(JOB)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["plan", *argv]) == 0
    return capsys.readouterr().out


def test_a_plan_says_layout_batch_rate_and_sync(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys, "job.toml", "--workers", "2", "--set", "sync.policy=diloco", "--set", "sync.every=20"
    )
    assert "dp=2, 2 processes" in text
    assert "16 sequences" in text
    assert "diloco every 20 steps" in text
    assert "learning rate" in text


@pytest.mark.slow
def test_the_cut_is_drawn_row_by_row(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "show-cut", "job.toml", "--layout", "pp=2,tp=2")
    rows = [line for line in text.splitlines() if "#" in line]
    assert len(rows) == 2
    assert "embedding 0-" in rows[0]
    assert "-5 head" in rows[1]
    assert "tp divides by inputs: attention.output, ffn.down" in text
    assert "idles" in text
    assert "fixed" in text


@pytest.mark.slow
def test_show_cut_may_follow_the_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = shown(capsys, "show-cut", "job.toml", "--layout", "pp=2")
    assert shown(capsys, "job.toml", "show-cut", "--layout", "pp=2") == before


@pytest.mark.slow
def test_a_cut_is_printed_as_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(capsys, "show-cut", "job.toml", "--layout", "pp=3,cut=fixed", "--json"))
    assert [piece["until"] - piece["first"] for piece in found["cut"]["pieces"]] == [2, 2, 2]


@pytest.mark.slow
def test_devices_too_small_are_refused_by_name(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "show-cut", "job.toml", "--layout", "pp=2", "--memories", "1KiB,1GiB"]
    assert main(asked) == 2
    assert "the device at position 0 has 1.0 KiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["show-cut"], "required: JOB.toml"),
        (["job.toml", "shw-cut"], "did you mean 'show-cut'?"),
        (["shw-cut", "job.toml"], "did you mean 'show-cut'?"),
        (["verfy"], "did you mean 'verify'?"),
        (["job.toml", "--speeds", "1,0.5"], "unrecognized arguments: --speeds"),
        (["show-cut", "job.toml", "--speeds", "1,fast"], "'1,fast' is not a list of numbers"),
        (["show-cut", "job.toml", "--memories", "1,much"], "'much' is not a size in bytes"),
        (["job.toml", "--layout", "pp=two"], "--layout pp=two"),
    ],
)
def test_mistakes_are_said_in_a_sentence(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    assert main(["plan", *argv]) == 2
    assert reason in capsys.readouterr().err
