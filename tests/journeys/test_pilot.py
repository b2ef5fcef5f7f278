"""A user asks what loss to expect before spending the time, and holds the answer against the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

SMALL = ("model.width=16", "model.heads=1", "model.context=32", "train.steps=2000", "train.batch_sequences=4")


@pytest.mark.long
def test_pilots_are_made_once_and_report_how_the_job_ends(as_json: Callable[..., Any], folder: Path) -> None:
    asked = [word for setting in SMALL for word in ("--set", setting)]
    told = as_json("plan", "job.toml", "--pilot", *asked)
    assert told["figures"]["loss_low"] <= told["figures"]["loss"] <= told["figures"]["loss_high"]
    checked = as_json("plan", "pilot", "job.toml", "--check", *asked)
    assert checked["pilots"] == told["pilots"]
    assert all(len(list(made.glob("[0-9]*"))) == 1 for made in (folder / "home/runs").glob("tiny-pilot-*"))
    # So small a text is learnt by heart, which no law foretells; the answer must be of the right size.
    assert checked["figures"]["loss_error"] < 0.3


def test_a_job_that_is_too_short_for_pilots_is_reported(windlass: Callable[..., Any]) -> None:
    done = windlass("plan", "job.toml", "--pilot", code=2)
    assert "tell nothing" in done.stderr
    assert "--pilot-share" in done.stderr
