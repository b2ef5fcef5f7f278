"""`windlass jobs audit` and what `jobs show` tells of time and incidents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main
from windlass.corpus.batches import digest_of_range, sample_count
from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.plan.local.machine import MachineFacts
from windlass.plan.search import plan_run
from windlass.runs.training import corpus_facts
from windlass.spec.job import Job
from windlass.spec.run import JOURNAL, RUN_FILE
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

CONTEXT, BATCH = 16, 8


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a run on a small corpus, and a journal without records."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"paragraph {n} says {n * n} words of its own" for n in range(100)))
    job = Job.model_validate(
        {
            "name": "poems",
            "corpus": {"sources": [str(text)], "document": "paragraph", "tokenizer": {"kind": "char"}},
            "model": {"layers": 2, "width": 32, "heads": 2, "context": CONTEXT},
            "train": {"steps": 100, "batch_sequences": BATCH},
        }
    )
    facts = corpus_facts(build_corpus(job.corpus, tmp_path))
    run = plan_run(job, facts, MachineFacts(2, 8 << 30, 1e11, False))
    StoreDir(tmp_path / "runs" / "poems" / "1").write(RUN_FILE, run.model_dump_json().encode())
    return tmp_path


def tell(home: Path, event: str, time: float, **facts: Any) -> None:
    journal = Journal(StoreDir(home / "runs" / "poems" / "1"), JOURNAL)
    journal.append({"event": event, "time": time, **facts})


def tell_steps(home: Path, time: float, first: int, last: int) -> None:
    p, q = first * BATCH, last * BATCH
    facts = {"generation": 1, "steps": [first, last], "samples": [p, q], "digest": digest_of_range(p, q)}
    tell(home, "ledger", time, **facts, spent={"compute": 1.0})


def test_a_run_that_used_every_sample_once_is_proved(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell_steps(home, 1.0, 0, 10)
    tell(home, "resumed", 2.0, step=8, samples=64)
    tell_steps(home, 3.0, 8, 60)
    assert main(["jobs", "audit", "poems", "--home", str(home)]) == 0
    told = capsys.readouterr().out
    assert "poems/1: all 480 samples of 60 steps were used exactly once" in told
    assert "16 more were used and rolled back, once" in told
    corpus = next((home / "corpora").glob("*/manifest.json")).parent
    samples = sample_count(len(load_corpus(corpus).train), CONTEXT)
    assert 1 <= 480 // samples <= 4
    assert f"{480 % samples} of {samples} samples of an epoch" in told


def test_a_gap_is_named_and_gives_exit_code_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell_steps(home, 1.0, 0, 2)
    tell_steps(home, 2.0, 3, 4)
    assert main(["jobs", "audit", "poems", "--home", str(home)]) == 1
    assert "- positions 16 to 23 were not used (8 samples)" in capsys.readouterr().out
    assert main(["jobs", "audit", "poems", "--home", str(home), "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["ok"], facts["samples_lost"], facts["gaps"]) == (False, 8, [[16, 24]])


def test_a_run_without_steps_and_one_without_a_ledger_are_distinguished(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["jobs", "audit", "poems", "--home", str(home)]) == 0
    assert "no step was taken yet" in capsys.readouterr().out
    tell(home, "step", 1.0, step=10, loss=2.0, tokens_per_s=10.0)
    assert main(["jobs", "audit", "poems", "--home", str(home)]) == 1
    assert "kept no ledger" in capsys.readouterr().out


def test_a_corpus_that_is_gone_leaves_the_positions_proved(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_steps(home, 1.0, 0, 2)
    for manifest in (home / "corpora").glob("*/manifest.json"):
        manifest.unlink()
    assert main(["jobs", "audit", "poems", "--home", str(home)]) == 0
    assert "epochs were not checked" in capsys.readouterr().out


def test_show_reports_where_the_time_went_and_what_went_wrong(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(home, "started", 100.0)
    tell(home, "settled", 101.0, step=0, samples=0, source="start", seconds=1.0, rolled_back=0)
    tell_steps(home, 102.0, 0, 2)
    lost = {"worker": "w1", "node": "a", "rank": 1, "generation": 1}
    tell(home, "lost", 102.0, **lost, how="exit", detail="was killed by SIGKILL", silent_s=0.0)
    tell(home, "settled", 104.0, step=2, samples=16, source="memory", seconds=1.0, rolled_back=0)
    assert main(["jobs", "show", "poems", "--home", str(home)]) == 0
    told = capsys.readouterr().out
    assert "recovery  50.0%  2.0s" in told
    assert "incidents: 1\n- 1970-01-01 00:01:42 worker w1 (rank 1 on a) was killed by SIGKILL" in told
    assert main(["jobs", "show", "poems", "--home", str(home), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["goodput"]["shares"]["recovery"] == 0.5
    assert facts["incidents"][0]["seconds"] == 2.0
