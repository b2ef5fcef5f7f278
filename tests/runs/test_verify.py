"""`windlass jobs verify` and `windlass prove saves`, with real processes."""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main
from windlass.cli.training.jobs_verify import add_verify
from windlass.lab.proofs.saves_proof import is_proved, prove_saves
from windlass.runs.training import RunFolder
from windlass.runs.verify import verify_run

pytestmark = pytest.mark.slow

JOB = """
name = "small"
[corpus]
sources = ["topics.txt"]
document = "paragraph"
validation_share = 0.2
[corpus.tokenizer]
kind = "char"
[model]
layers = 1
width = 32
heads = 2
context = 32
[train]
steps = 6
batch_sequences = 4
checkpoint_every = 3
log_every = 1
[machine]
compile = "off"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a finished run."""
    folder = tmp_path_factory.mktemp("verify")
    texts = list(pydoc_data.topics.topics.values())[:8]
    (folder / "topics.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (folder / "job.toml").write_text(JOB)
    assert main(["train", str(folder / "job.toml"), "--home", str(folder / "home")]) == 0
    return folder / "home"


def verified(home: Path, *words: str) -> int:
    """The exit code of the command."""
    parser = argparse.ArgumentParser()
    add_verify(parser.add_subparsers(dest="what"))
    args = parser.parse_args(["verify", "small", "--home", str(home), *words])
    return int(args.run(args))


def test_a_good_checkpoint_is_found_good(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = verified(home, "--step", "3", "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["ok"]
    (local,) = found["tiers"]
    assert (local["tier"], local["step"]) == ("local", 3)
    assert local["loss"] == pytest.approx(local["expected"], rel=1e-5)


def test_a_damaged_checkpoint_is_found_and_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder(home / "runs" / "small" / "1")
    part = folder.path / "checkpoints" / "step-00000006" / "part-00000.safetensors"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    try:
        code = verified(home)
    finally:
        part.write_bytes(whole)
    assert code == 1
    said = capsys.readouterr().out
    assert "NOT GOOD" in said
    assert "part-00000.safetensors" in said
    assert verify_run(folder, home)["ok"]


def test_saves_may_die_at_any_byte(tmp_path: Path) -> None:
    lines: list[str] = []
    result = prove_saves(tmp_path, 12, lines.append, seed=3)
    assert is_proved(result["figures"]), result
    assert len(lines) == len(result["kills"]) == result["figures"]["saves"] == 12
    assert not is_proved({**result["figures"], "loaded": 11})
