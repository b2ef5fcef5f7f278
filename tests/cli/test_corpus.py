from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main

POEM = "明月几时有？把酒问青天。\n不知天上宫阙，今夕是何年。\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_HOME", raising=False)
    rows = [{"text": f"Story {i}: the rope of the windlass turned {i * i} times. {POEM}"} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def build(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    return answer(capsys, "corpus", "build", *argv)


SMALL = ("--vocabulary", "300", "--duplicates", "exact")


def test_a_corpus_is_built_counted_and_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = build(capsys, "rows.jsonl", *SMALL)
    assert built["documents"] == 60
    assert built["vocabulary"] == 300
    assert Path(built["path"]).parent == here / ".windlass" / "corpora"
    assert answer(capsys, "corpus", "stats", built["corpus"][:5], "--check") == built
    shown = answer(capsys, "corpus", "show", built["path"], "--documents", "4", "--chars", "30")
    assert len(shown) == 4
    assert shown[0]["id"].startswith(str(here / "rows.jsonl"))
    assert shown[0]["text"].startswith("Story ")
    assert len(shown[0]["text"]) == 30
    assert shown[0]["cut"]


def test_people_see_a_table_and_a_histogram(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "build", "rows.jsonl", *SMALL]) == 0
    out, err = capsys.readouterr()
    assert "validation" in out
    assert "tokenise" in err
    name = next(p.name for p in (here / ".windlass" / "corpora").glob("[!.]*"))
    assert main(["corpus", "stats", name]) == 0
    assert "█" in capsys.readouterr().out
    assert main(["corpus", "show", name, "--part", "validation", "--documents", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("--- ")
    assert "明月几时有" in out


def test_people_see_where_the_tokens_of_a_stored_corpus_are(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ("--store", str(here / "store"))
    assert build(capsys, "rows.jsonl", *SMALL, *store)["store"] is None  # it lies here, and there
    assert main(["corpus", "build", "rows.jsonl", *SMALL, *store, "--home", "other"]) == 0
    printed = capsys.readouterr().out
    assert f"tokens at                       {here / 'store'}/" in printed
    assert f"cached in                       {here / 'other' / 'cache'} (mru, at most 10.0 GiB)" in printed


def test_options_and_a_job_file_mean_the_same_corpus(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "job.toml").write_text(
        '[corpus]\nsources = ["rows.jsonl"]\n'
        'clean = { duplicates = "exact" }\ntokenizer = { vocabulary = 300 }\n'
    )
    with pytest.raises(SystemExit):
        main(["corpus", "build", "--help"])
    capsys.readouterr()
    assert main(["corpus", "stats", "job.toml"]) == 2
    assert "windlass corpus build job.toml" in capsys.readouterr().err
    by_options = build(capsys, "rows.jsonl", *SMALL)
    assert build(capsys, "job.toml")["corpus"] == by_options["corpus"]
    assert answer(capsys, "corpus", "stats", "job.toml") == by_options
    assert build(capsys, "job.toml", "--set", "corpus.clean.min_chars=20")["corpus"] != by_options["corpus"]


def test_a_tokenizer_may_be_characters_or_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    char = build(capsys, "rows.jsonl", "--tokenizer", "char", "--duplicates", "exact")
    assert char["bytes_per_token"] > 1
    file = Path(char["path"]) / "tokenizer.json"
    (here / "mine.json").write_bytes(file.read_bytes())
    given = build(capsys, "rows.jsonl", "--tokenizer", "mine.json", "--duplicates", "exact")
    assert given["corpus"] != char["corpus"]
    assert given["tokens"] == char["tokens"]


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["corpus"], "needs a subcommand"),
        (["corpus", "build", "none.txt"], "none.txt: no such file"),
        (["corpus", "build", "none*.txt"], "no file matches"),
        (["corpus", "build", "none.toml"], "none.toml: no such file"),
        (["corpus", "build", "rows.jsonl", "--split", "tial"], "did you mean 'tail'?"),
        (["corpus", "build", "rows.jsonl", "--text-field", "txt"], "did you mean 'text'?"),
        (["corpus", "build", "rows.jsonl", "--tokenizer", "none.json"], "no such tokenizer"),
        (["corpus", "build", "rows.jsonl", "--processes", "0"], "must be at least 1"),
        (["corpus", "build", "rows.jsonl", "--set", "corpus.spilt=tail"], "did you mean 'split'?"),
        (["corpus", "build", "picture.png"], "1 binary file"),
        (["corpus", "build", "empty.txt"], "the corpus is empty"),
        (["corpus", "stats", "abc"], "no such corpus"),
        (["corpus", "show", "abc", "--documents", "0"], "must be at least 1"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    here: Path, capsys: pytest.CaptureFixture[str], argv: list[str], told: str
) -> None:
    (here / "picture.png").write_bytes(b"\x89PNG\0\0")
    (here / "empty.txt").touch()
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("windlass: ")
    assert told in err
