"""A real run, submitted and followed from a program."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from windlass.sdk import Jobs, submit
from windlass.sdk.progress import PlainOutput

pytestmark = pytest.mark.slow

JOB = """
name = "poems"
[corpus]
sources = ["text.txt"]
tokenizer = { vocabulary = 300 }
[model]
layers = 1
width = 32
heads = 2
context = 32
[train]
steps = 50
batch_sequences = 4
log_every = 1
"""


def test_a_run_is_submitted_followed_and_accounted_for(tmp_path: Path, control: tuple[str, str]) -> None:
    text = "".join(f"the quick brown fox {n} jumps over the lazy dog {n * 7}\n" for n in range(400))
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "poems.toml").write_text(JOB)
    done = submit(tmp_path / "poems.toml", settings={"train.steps": 12}, home=tmp_path)
    assert done.run == "poems/1"
    out = io.StringIO()
    with Jobs(*control) as jobs:
        run = jobs.follow(done.run, screen=PlainOutput(out), deadline=120)
        assert (run.state, run.step) == ("finished", 12)
        assert len(jobs.curve("poems")) == 12
        assert jobs.audit("poems").ok
        assert jobs.list()[0].predicted["tokens_per_s"] > 0
    assert "100%  step 12/12" in out.getvalue()
