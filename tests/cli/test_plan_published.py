"""`windlass plan published`, on rows of one's own and without the shared ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from windlass.cli.main import main
from windlass.cli.planning import plan_published

HERE = {
    "set": "here", "framework": "unknown", "model": "GPT-1B", "layers": "24", "hidden": "2048",
    "heads": "16", "ffn": "8192", "vocab": "50304", "seq": "2048", "gpu": "A100-80GB-SXM", "n_gpus": "8",
    "global_batch": "64", "micro_batch": "4", "tp": "1", "pp": "1", "sharding": "ZeRO-1",
    "recompute": "none", "precision": "bf16",
    "iter_time_s": "1.0", "mem_gb": "40", "outcome": "ok",
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_published, "find_rows", lambda: None)


@pytest.fixture
def own_rows(tmp_path: Path) -> Path:
    path = tmp_path / "own.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(HERE))
        writer.writeheader()
        writer.writerows([HERE, HERE | {"heads": ""}, HERE | {"outcome": "oom", "iter_time_s": ""}])
    return path


def test_rows_of_ones_own_are_judged_with_the_constants_that_ship(
    own_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "published", "--rows", str(own_rows), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sources"]["here"]["used"] == 1
    assert found["sources"]["here"]["skipped"] == {"no heads": 1, "did not run (oom)": 1}
    assert found["figures"]["time_mape"] == abs(found["worst"][0]["error"])


def test_people_see_a_table(own_rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "published", "--rows", str(own_rows)]) == 0
    shown = capsys.readouterr().out
    assert "here: 1 x did not run (oom); 1 x no heads" in shown
    assert "time_mape" in shown


def test_without_rows_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "published"]) == 2
    assert (
        "put training_rows.csv into ../shared/planner, or name a file with --rows" in capsys.readouterr().err
    )


def test_a_missing_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "published", "--rows", "none.csv"]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err


def test_a_set_that_the_constants_were_fitted_to_is_not_counted_as_unseen(
    own_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_rows.write_text(own_rows.read_text().replace("here", "mosaic_mpt"))
    assert main(["plan", "published", "--rows", str(own_rows), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["sources"]["mosaic_mpt"]["counted"]
    assert found["figures"]["time_mape"] is None
