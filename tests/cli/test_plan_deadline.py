"""A deadline asks for the cheapest run that is in time; it must not hide the quick ones."""

import json
from pathlib import Path

import pytest

from windlass.cli.main import main

pytestmark = pytest.mark.slow

JOB = """
[corpus]
sources = ["not-there.txt"]
[model]
context = 8192
[train]
tokens = "300B"
batch_sequences = 512
"""


@pytest.mark.parametrize("fleet", ["256xH100-SXM5", "96xA100-SXM4-80GB"])
def test_a_deadline_that_only_the_quickest_layout_keeps_is_kept(
    fleet: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    asked = ["plan", "job.toml", "--fleet", fleet, "--sizes", "Llama-3.1-70B", "--search", "greedy", "--json"]
    assert main(asked) == 0
    quickest_s = json.loads(capsys.readouterr().out)["layouts"][0]["seconds"]
    assert main([*asked, "--deadline", f"{1.02 * quickest_s:.0f}s"]) == 0
    assert json.loads(capsys.readouterr().out)["layouts"][0]["seconds"] <= 1.02 * quickest_s
