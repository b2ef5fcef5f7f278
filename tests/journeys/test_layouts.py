"""Layouts proved by real processes, as `windlass prove` does it, in a small form."""

from pathlib import Path
from typing import Any

import pytest

from windlass.operate.proof import prove
from windlass.spec.progress import silent
from windlass.spec.proof import RESHARD

pytestmark = pytest.mark.slow

SOME = (
    "dp=2,shares=2:1",
    "sharded=3",
    "tp=2",
    "cp=2",
    "pp=2,micro_batches=4,schedule=zbv,virtual=2",
    "sharded=2,pp=2,micro_batches=3",
)


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
def test_layouts_learn_the_same_as_one_process(tmp_path: Path, family: str) -> None:
    told: list[dict[str, Any]] = []
    result = prove(
        "layouts", tmp_path, families=[family], layouts=SOME, steps=4, report=silent, tell=told.append
    )
    assert result["figures"]["layouts_equal"] == result["figures"]["layouts_tried"] == len(SOME), result
    assert result["figures"]["worst_loss_difference"] < 1e-5
    assert [event["layout"] for event in told if event["event"] == "case"] == list(SOME)


def test_a_run_goes_on_under_other_layouts_as_if_nothing_had_changed(tmp_path: Path) -> None:
    result = prove(
        "reshard",
        tmp_path,
        families=["gpt2"],
        layouts=RESHARD,
        steps=4,
        report=silent,
        tell=lambda _event: None,
    )
    assert result["figures"]["layouts_equal"] == 1, result
