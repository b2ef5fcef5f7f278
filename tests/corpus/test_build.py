from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from windlass.corpus.batches import read_batch, sample_count
from windlass.corpus.build import build_corpus, find_built, is_whole
from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.corpus.stats import bucket_of, draw_lengths
from windlass.spec.errors import BadInput, Damaged, InUse, NotFound
from windlass.spec.job import Clean, Corpus, TokenizerSpec
from windlass.spec.protocol.progress import Progress
from windlass.store.lock import locked


def write_rows(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), "utf-8")


def lines(count: int) -> list[str]:
    return [
        f"Document {i} tells of {i * i} turns of the rope, and 第{i}回 of the moon." for i in range(count)
    ]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    write_rows(tmp_path / "rows.jsonl", lines(200))
    return tmp_path / "rows.jsonl"


def corpus_spec(source: Path, **settings: Any) -> Corpus:
    settings.setdefault("tokenizer", TokenizerSpec(vocabulary=400))
    settings.setdefault("clean", Clean(duplicates="exact"))
    return Corpus(sources=(str(source),), **settings)


def texts_of(built: BuiltCorpus, part: str) -> list[str]:
    tokens = built.part(part)
    return [built.tokenizer.decode(tokens.document(i).tolist()) for i in range(tokens.documents)]


def test_every_document_is_in_one_part_whole_and_ended(tmp_path: Path, rows: Path) -> None:
    built = load_corpus(build_corpus(corpus_spec(rows), tmp_path), thorough=True)
    train, validation = texts_of(built, "train"), texts_of(built, "validation")
    assert sorted(train + validation) == sorted(lines(200))
    assert [text for text in lines(200) if text in set(train)] == train
    for part in (built.train, built.validation):
        tokens = part.read(0, len(part))
        assert int((tokens == built.tokenizer.end_id).sum()) == part.documents
        assert tokens[-1] == built.tokenizer.end_id
        assert part.text_bytes == int(part.column("text_bytes").sum())
    assert built.train.text_bytes == sum(len(text.encode()) for text in train)
    assert built.document_id("train", 0) == f"{rows}:{lines(200).index(train[0]) + 1}"


def test_building_again_finds_the_corpus(tmp_path: Path, rows: Path) -> None:
    seen: list[Progress] = []
    first = build_corpus(corpus_spec(rows), tmp_path, seen.append)
    assert {p.stage for p in seen} == {"read", "clean", "tokenizer", "merge", "tokenise"}
    assert all(0 <= p.done <= (p.total or 0) for p in seen)
    seen.clear()
    assert (
        build_corpus(corpus_spec(rows), tmp_path, seen.append)
        == first
        == find_built(corpus_spec(rows), tmp_path)
    )
    assert seen == []
    write_rows(rows, lines(50))
    assert build_corpus(corpus_spec(rows), tmp_path) != first


def test_only_the_files_of_the_format_are_left(tmp_path: Path, rows: Path) -> None:
    folder = build_corpus(corpus_spec(rows), tmp_path)
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == [
        "config.json", "corpus.json", "manifest.json", "sources.json", "tokenizer.json",
        "tokenizer_config.json", "train/documents.bin", "train/tokens-00000.bin",
        "validation/documents.bin", "validation/tokens-00000.bin",
    ]  # fmt: skip


def test_the_content_has_the_same_digest_wherever_it_lies(tmp_path: Path, rows: Path) -> None:
    other = tmp_path / "other" / "rows.jsonl"
    other.parent.mkdir()
    other.write_bytes(rows.read_bytes())
    one, two = (load_corpus(build_corpus(corpus_spec(path), tmp_path)) for path in (rows, other))
    assert one.path != two.path
    assert one.digest == two.digest


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", [TokenizerSpec(vocabulary=300), TokenizerSpec(kind="char")])
def test_the_number_of_processes_changes_nothing(
    tmp_path: Path, tokenizer: TokenizerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks, cuts of long documents and duplicates across blocks included."""
    for setting in ("executor.BLOCK_BYTES", "executor.SMALL_BYTES", "tokenise.BLOCK_BYTES"):
        monkeypatch.setattr(f"windlass.corpus.{setting}", 1 << 14)
    long = "\n".join(f"line {i} of a long text, 第{i}行。" for i in range(3000))
    texts = [*lines(900), long, *lines(30), *(line + " again" for line in lines(40))]
    write_rows(tmp_path / "rows.jsonl", texts)
    corpus = corpus_spec(tmp_path / "rows.jsonl", tokenizer=tokenizer, clean=Clean(), validation_share=0.3)
    built = [
        load_corpus(build_corpus(corpus, tmp_path / str(n), processes=n), thorough=True) for n in (1, 2, 3)
    ]
    assert len({b.digest for b in built}) == 1
    assert built[0].stats == built[1].stats == built[2].stats
    assert built[0].stats["dropped"]["duplicate"] == 30
    assert long in texts_of(built[0], "train") + texts_of(built[0], "validation")


def test_duplicates_are_dropped_and_counted(tmp_path: Path, english: str, chinese: str) -> None:
    near = english.replace("bright", "fair")
    write_rows(tmp_path / "rows.jsonl", [english, chinese, english + " ", near, "x", " \n"])
    dropped = {
        kind: load_corpus(
            build_corpus(
                corpus_spec(tmp_path / "rows.jsonl", clean=Clean(duplicates=kind), split="tail"), tmp_path
            )
        ).stats["dropped"]
        for kind in ("keep", "exact", "near")
    }
    rules = {"empty": 1, "too short": 1}
    assert dropped["keep"] == rules
    assert dropped["exact"] == {"duplicate": 1, **rules}
    assert dropped["near"] == {"duplicate": 1, "near duplicate": 1, **rules}


def test_a_tail_split_of_one_text_by_characters(tmp_path: Path, chinese: str) -> None:
    (tmp_path / "a.txt").write_text(chinese, "utf-8")
    corpus = corpus_spec(
        tmp_path / "a.txt", split="tail", validation_share=0.2, tokenizer=TokenizerSpec(kind="char")
    )
    built = load_corpus(build_corpus(corpus, tmp_path))
    cut = int(len(chinese) * 0.8)
    assert (texts_of(built, "train"), texts_of(built, "validation")) == ([chinese[:cut]], [chinese[cut:]])
    assert built.train.tokens == cut + 1
    assert built.stats["documents"] == 1


def test_a_given_tokenizer_is_kept_with_its_config(tmp_path: Path, rows: Path) -> None:
    first = load_corpus(build_corpus(corpus_spec(rows), tmp_path))
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(first.tokenizer.json)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|pad|>"}')
    given = TokenizerSpec(kind="file", path=str(folder / "tokenizer.json"))
    built = load_corpus(build_corpus(corpus_spec(rows, tokenizer=given), tmp_path))
    assert built.tokenizer.config == {"eos_token": "<|pad|>"}
    assert built.train.document(0)[-1] == built.tokenizer.end_id == 1
    assert built.train.document(0)[:-1].tolist() == first.train.document(0)[:-1].tolist()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "1 empty file"),
        (b"\0\1\2", "1 binary file"),
        ("né".encode("latin-1"), "1 file that is not UTF-8"),
        (b"short", "1 too short"),
        (b" \n \n", "1 empty"),
    ],
)
def test_an_empty_corpus_says_what_became_of_its_files(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(
        BadInput, match=rf"the corpus is empty: .* of 1 file in .*a\.bin \(dropped: {reason}\)"
    ):
        build_corpus(corpus_spec(tmp_path / "a.bin"), tmp_path / "home")
    assert list((tmp_path / "home" / "corpora").glob("[!.]*")) == []


def test_two_builders_do_not_work_on_one_corpus(tmp_path: Path, rows: Path) -> None:
    folder = find_built(corpus_spec(rows), tmp_path)
    lock = folder.with_name(f".{folder.name}.lock")
    script = (
        "import sys; from pathlib import Path; from windlass.store.lock import locked\n"
        "with locked(Path(sys.argv[1]), 'it'): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InUse, match=folder.name):
            build_corpus(corpus_spec(rows), tmp_path)
        other.communicate()
    with locked(lock, "it"):
        pass
    assert is_whole(build_corpus(corpus_spec(rows), tmp_path))


@pytest.mark.parametrize("stage", ["read", "clean", "tokenizer", "tokenise"])
def test_an_interrupted_build_leaves_nothing_behind(tmp_path: Path, rows: Path, stage: str) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_corpus(corpus_spec(rows), tmp_path, interrupt)
    assert not find_built(corpus_spec(rows), tmp_path).exists()
    assert is_whole(build_corpus(corpus_spec(rows), tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the workers of a killed process")
@pytest.mark.parametrize("stage", ["read", "tokenise"])
def test_a_killed_build_leaves_no_corpus_and_no_process_and_the_next_one_succeeds(
    tmp_path: Path, stage: str
) -> None:
    write_rows(tmp_path / "rows.jsonl", lines(5000))
    corpus = corpus_spec(tmp_path / "rows.jsonl", tokenizer=TokenizerSpec(vocabulary=300))
    script = (
        "import sys, os, signal, psutil; from pathlib import Path\n"
        "from windlass.corpus import build, executor; from windlass.spec.job import Corpus\n"
        "def report(p):\n"
        "    if p.stage == sys.argv[3]:\n"
        "        print(*[child.pid for child in psutil.Process().children()], flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "executor.SMALL_BYTES = 0\n"
        "corpus = Corpus.model_validate_json(sys.argv[1])\n"
        "build.build_corpus(corpus, Path(sys.argv[2]), report, processes=2)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, corpus.model_dump_json(), str(tmp_path), stage],
        timeout=120, check=False, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL
    workers = []
    for pid in map(int, ended.stdout.split()):
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended already
            workers.append(psutil.Process(pid))
    assert psutil.wait_procs(workers, timeout=120)[1] == []
    folder = find_built(corpus, tmp_path)
    assert (folder / "cleaned.text").exists()
    assert not is_whole(folder)
    built = load_corpus(build_corpus(corpus, tmp_path), thorough=True)
    assert built.stats["documents"] == 5000
    assert not (folder / "cleaned.text").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX resource limits")
def test_a_full_disk_is_reported_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: both end a write half-way."""
    write_rows(tmp_path / "rows.jsonl", lines(3000))
    corpus = corpus_spec(tmp_path / "rows.jsonl")
    script = (
        "import sys, resource; from pathlib import Path\n"
        "from windlass.corpus.build import build_corpus; from windlass.spec.job import Corpus\n"
        "from windlass.spec.errors import StoreFailed\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        "try: build_corpus(Corpus.model_validate_json(sys.argv[1]), Path(sys.argv[2]))\n"
        "except StoreFailed as error: print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, corpus.model_dump_json(), str(tmp_path / "home")],
        timeout=120, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "File too large" in ended.stdout
    assert list((tmp_path / "home" / "corpora").glob("[!.]*")) == []


def test_a_corpus_cut_short_is_damaged_and_is_built_again(tmp_path: Path, rows: Path) -> None:
    folder = build_corpus(corpus_spec(rows), tmp_path)
    digest = load_corpus(folder).digest
    shard = folder / "train" / "tokens-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(Damaged, match=r"tokens-00000\.bin"):
        load_corpus(folder)
    assert load_corpus(build_corpus(corpus_spec(rows), tmp_path)).digest == digest


def test_a_changed_byte_is_found_by_a_thorough_look(tmp_path: Path, rows: Path) -> None:
    folder = build_corpus(corpus_spec(rows), tmp_path)
    shard = folder / "train" / "tokens-00000.bin"
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    load_corpus(folder)
    with pytest.raises(Damaged, match=r"tokens-00000\.bin"):
        load_corpus(folder, thorough=True)


def test_nothing_is_no_corpus(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no finished corpus"):
        load_corpus(tmp_path)


def test_batches_come_from_the_tokens_of_the_corpus(tmp_path: Path, rows: Path) -> None:
    part = load_corpus(build_corpus(corpus_spec(rows), tmp_path)).train
    samples = sample_count(len(part), 16)
    batch = read_batch(part, range(samples), 16, seed=3)
    tokens = part.read(0, samples * 16 + 1).astype(np.int64)
    ordered = batch[np.argsort([tuple(row) for row in batch.tolist()], axis=0)[:, 0]]
    assert sorted(batch.tolist()) == sorted(tokens[i * 16 : i * 16 + 17].tolist() for i in range(samples))
    assert batch.tolist() != ordered.tolist()


def test_lengths_fall_into_powers_of_two() -> None:
    assert bucket_of(np.array([1, 2, 3, 4, 7, 8, 1023, 1024])).tolist() == [0, 1, 1, 2, 2, 3, 9, 10]


def test_a_histogram_has_a_line_for_every_power_between() -> None:
    drawn = draw_lengths({"1": 1, "8": 400})
    assert [line.split()[0] for line in drawn] == ["1", "2", "4", "8"]
    assert "▏" in drawn[0]
    assert drawn[3].count("█") == 40


def test_shakespeare_in_characters_is_the_well_known_corpus(tmp_path: Path, shakespeare: Path) -> None:
    corpus = Corpus(
        sources=(str(shakespeare),), split="tail", validation_share=0.1, tokenizer=TokenizerSpec(kind="char")
    )
    built = load_corpus(build_corpus(corpus, tmp_path))
    assert (built.train.tokens, built.validation.tokens) == (1_003_855, 111_541)
    assert built.stats["vocabulary_used"] == 65 + 1
    assert texts_of(built, "validation")[0].startswith("?\n\nGREMIO:\nGood morrow, neighbour Baptista.")


@pytest.mark.slow
def test_chinese_poems_come_back_whole(tmp_path: Path, poems: Path) -> None:
    some = poems.read_text("utf-8").splitlines(keepends=True)[:4000]
    (tmp_path / "some.jsonl").write_text("".join(some), "utf-8")
    corpus = Corpus(sources=(str(tmp_path / "some.jsonl"),), tokenizer=TokenizerSpec(vocabulary=2000))
    built = load_corpus(build_corpus(corpus, tmp_path))
    assert built.stats["documents"] > 3500
    assert built.stats["bytes_per_token"] > 2
    assert set(texts_of(built, "validation")) <= {json.loads(line)["text"] for line in some}
