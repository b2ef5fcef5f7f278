"""The stages of a build on Beam's embedded runner: the same bytes as the pool gives."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.corpus.on_beam import BeamExecutor
from windlass.spec.errors import BadInput
from windlass.spec.job import Clean, Corpus, TokenizerSpec
from windlass.spec.protocol.progress import Progress
from windlass.store.beam import BeamRunner


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small documents, a long one, duplicates, and something that is no text."""
    for module in ("executor", "tokenise"):  # so that a little text makes many blocks
        monkeypatch.setattr(f"windlass.corpus.{module}.BLOCK_BYTES", 1 << 14)
    folder = tmp_path / "texts"
    folder.mkdir()
    rows = [f"Row {i} tells of {i * i} turns of the rope, and 第{i % 7}回 of the moon." for i in range(300)]
    packed = "".join(json.dumps({"text": row}) + "\n" for row in rows + rows[:9]).encode()
    (folder / "rows.jsonl.gz").write_bytes(gzip.compress(packed))
    (folder / "long.txt").write_text("".join(f"Line {i} of a long text.\n" for i in range(4000)))
    (folder / "picture.txt").write_bytes(b"\0\1\2")
    return folder


def corpus_spec(folder: Path, **settings: Any) -> Corpus:
    settings.setdefault("tokenizer", TokenizerSpec(vocabulary=300))
    return Corpus(sources=(str(folder),), clean=Clean(duplicates="exact"), **settings)


def beam_executor(tmp_path: Path, processes: int = 1) -> BeamExecutor:
    return BeamExecutor(
        BeamRunner(processes=processes, log=str(tmp_path / "beam.log")), str(tmp_path / "scratch")
    )


def test_beam_builds_the_same_bytes_as_the_pool(tmp_path: Path, texts: Path) -> None:
    by_pool = load_corpus(build_corpus(corpus_spec(texts), tmp_path / "pool"), thorough=True)
    by_beam = load_corpus(
        build_corpus(corpus_spec(texts), tmp_path / "beam", executor=beam_executor(tmp_path)), thorough=True
    )
    assert by_beam.digest == by_pool.digest
    assert by_beam.stats["dropped"] == {"binary file": 1, "duplicate": 9}


def test_characters_and_lines_as_documents_come_out_the_same_too(tmp_path: Path, texts: Path) -> None:
    corpus = corpus_spec(texts / "long.txt", document="line", tokenizer=TokenizerSpec(kind="char"))
    pool, beam = (
        build_corpus(corpus, tmp_path / "pool"),
        build_corpus(corpus, tmp_path, executor=beam_executor(tmp_path)),
    )
    assert load_corpus(beam).digest == load_corpus(pool).digest


def test_what_is_wrong_with_a_file_is_reported_as_by_the_pool(tmp_path: Path, texts: Path) -> None:
    (texts / "torn.jsonl").write_text('{"text": "whole"}\n{"text": "to')
    with pytest.raises(BadInput, match=r"torn\.jsonl: line 2 is not JSON") as found:
        build_corpus(corpus_spec(texts), tmp_path, executor=beam_executor(tmp_path))
    assert found.value.hint == "JSONL holds one JSON object on each line"


def test_nothing_is_left_in_the_scratch_place(tmp_path: Path, texts: Path) -> None:
    made = beam_executor(tmp_path)
    build_corpus(corpus_spec(texts), tmp_path, executor=made)
    made.close()
    assert not (tmp_path / "scratch").exists()


def test_progress_goes_up_to_the_whole(tmp_path: Path, texts: Path) -> None:
    seen: list[Progress] = []
    build_corpus(corpus_spec(texts), tmp_path, seen.append, executor=beam_executor(tmp_path))
    assert {p.stage for p in seen} >= {"read", "clean", "tokenizer", "tokenise"}
    assert seen[-1].done == seen[-1].total


@pytest.mark.slow
def test_the_command_builds_with_processes_of_beam(tmp_path: Path, texts: Path) -> None:
    def build(home: Path, *more: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "windlass.cli", "corpus", "build", str(texts)]
        command += ["--vocabulary", "300", "--json", "--home", str(home), *more]
        done = subprocess.run(command, capture_output=True, check=True, timeout=300)
        return dict(json.loads(done.stdout))

    beam = build(tmp_path / "beam", "--runner", "direct", "--processes", "2")
    assert beam["digest"] == build(tmp_path / "pool")["digest"]
    assert not any((tmp_path / "beam" / "scratch").iterdir())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--runner", "flink"], "needs --scratch, a directory that all workers can access"),
        (["--scratch", "s3://bucket"], "need --runner direct"),
        (["--runner", "direct", "--runner-option", "speed"], "write it as key=value"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from windlass.cli.main import main

    assert main(["corpus", "build", str(tmp_path), "--home", str(tmp_path), *words]) == 2
    assert why in capsys.readouterr().err
