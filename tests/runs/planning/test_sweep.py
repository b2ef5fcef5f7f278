"""A whole sweep, on Beam's embedded runner."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from windlass.cli.main import main

pytest.importorskip("apache_beam", reason="needs Apache Beam (the extra 'beam')")

OUTPUTS = ("result.parquet", "no_solution.parquet", "buckets.parquet", "report.txt", "report.html")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Documents of two lengths in two files, a small model, two fleets of which one is too small."""
    lines = [{"text": f"A short text of a few words, number {n}."} for n in range(40)]
    lines += [{"text": " ".join(f"word{n * 7 % 91}" for n in range(900 + m))} for m in range(5)]
    for name, part in (("one", lines[::2]), ("two", lines[1::2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in part))
    (tmp_path / "options.toml").write_text('fleets = ["8xH100-SXM5", "1xL4"]\nmodels = ["7B"]\n')
    path = tmp_path / "job.toml"
    path.write_text(
        '[corpus]\nsources = ["one.jsonl", "two.jsonl"]\n[corpus.tokenizer]\nvocabulary = 400\n'
        '[model]\nparameters = "1B"\ncontext = 1024\n[train]\ntokens = "1B"\n'
    )
    return path


def sweep(job: Path, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    home = ["--home", str(job.parent / "home"), "--options", str(job.parent / "options.toml")]
    code = main(["plan", "sweep", str(job), *home, *args, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_every_bucket_is_planned_or_reported_why_not(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = sweep(job, capsys, "--out", str(job.parent / "out"))
    assert code == 0
    assert sum(row["documents"] for row in output["buckets"]) == 45
    assert len(output["buckets"]) >= 2
    assert {row["fleet"] for row in output["result"]} == {"8xH100-SXM5"}
    assert {row["fleet"] for row in output["no_solution"]} == {"1xL4"}
    assert len(output["result"]) == len(output["no_solution"]) == len(output["buckets"])
    assert {path.name for path in (job.parent / "out").iterdir()} == set(OUTPUTS)


@pytest.mark.slow
def test_one_process_and_two_give_the_same_files(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for processes in ("1", "2"):
        code, _ = sweep(job, capsys, "--processes", processes, "--out", str(job.parent / processes))
        assert code == 0
    for name in OUTPUTS:
        assert (job.parent / "1" / name).read_bytes() == (job.parent / "2" / name).read_bytes()


@pytest.mark.slow
def test_a_corpus_without_text_is_reported(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (job.parent / f"{name}.jsonl").write_text('{"text": "  "}\n')
    code, output = sweep(job, capsys)
    assert code == 2
    assert "the corpus is empty" in output["error"]["message"]


@pytest.mark.slow
def test_a_broken_line_is_reported_as_it_is_by_a_build(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (job.parent / "two.jsonl").open("a") as file:
        file.write("{broken\n")
    code, output = sweep(job, capsys)
    assert code == 2
    assert "two.jsonl: line" in output["error"]["message"]


def test_ports_of_the_embedded_runner_are_open_to_this_machine_only() -> None:
    import grpc

    from windlass.store.beam import on_loopback

    with on_loopback(), ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        port = server.add_insecure_port("[::]:0")
        server.start()
        listening = [c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
        server.stop(None).wait()
    assert {address.ip.removeprefix("::ffff:") for address in listening if address.port == port} == {
        "127.0.0.1"
    }
