from __future__ import annotations

import gzip
import json
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
import zstandard

from windlass.corpus.readers import documents
from windlass.corpus.sources import corpus_key, list_sources
from windlass.corpus.streams import ReadProgress
from windlass.spec.errors import BadInput, NotFound
from windlass.spec.job import STDLIB, Corpus
from windlass.store.store_dir import StoreDir


def read(*sources: Path | str, **settings: Any) -> tuple[list[tuple[int, str]], Counter[str]]:
    corpus = Corpus(sources=tuple(str(s) for s in sources), **settings)
    tally = ReadProgress()
    files = list_sources(corpus, tally.skipped)
    found = [(d.number, d.text) for d in documents(files, corpus, tally)]
    assert tally.read_bytes == sum(file.bytes for file in files)
    return found, +tally.skipped


def rows(*texts: str | None) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def test_a_text_file_is_one_document(tmp_path: Path, chinese: str) -> None:
    (tmp_path / "a.txt").write_text("\ufeff" + chinese, encoding="utf-8")
    assert read(tmp_path / "a.txt")[0] == [(1, chinese)]


def test_paragraphs_are_numbered_by_their_first_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\none\ntwo\n \n\nthree")
    assert read(tmp_path / "a.txt", document="paragraph")[0] == [(3, "one\ntwo"), (7, "three")]


def test_blank_lines_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\n\r\nthree")
    assert read(tmp_path / "a.txt", document="line")[0] == [(1, "one"), (3, "three")]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("settings", [{}, {"document": "line"}])
def test_compressed_text_reads_as_plain_text(tmp_path: Path, ending: str, settings: dict[str, str]) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    path = tmp_path / f"a.txt{ending}"
    path.write_bytes(pack("雪 one\ntwo\n".encode()))
    expected = [(1, "雪 one"), (2, "two")] if settings else [(1, "雪 one\ntwo\n")]
    assert read(path, **settings)[0] == expected


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_json_lines_are_numbered_by_line(tmp_path: Path, ending: str) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(pack(rows("一", None) + b"\n" + rows("three")))
    assert read(path) == ([(1, "一"), (4, "three")], Counter({"row without text": 1}))


def test_several_zstd_frames_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(rows("a")) + zstandard.compress(rows("b")))
    assert read(tmp_path / "a.jsonl.zst")[0] == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_torn_archive_is_not_read_as_a_shorter_one(tmp_path: Path, ending: str) -> None:
    pack = {".gz": gzip.compress, ".zst": zstandard.compress}[ending]
    path = tmp_path / f"a.txt{ending}"
    packed = pack(bytes(i * 7 % 256 for i in range(100_000) if i * 7 % 256))
    path.write_bytes(packed[:-9])
    with pytest.raises(BadInput, match=r"a\.txt.*broken"):
        read(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "line 2 is not JSON"),
        (b'{"text": "\xff"}', "line 2 is not JSON"),
        (b'["a"]', "line 2 holds a list, not an object"),
        (b'{"txt": "a"}', "line 2 has no field 'text'"),
        (b'{"text": 5}', "field 'text' holds a number, not a string"),
    ],
)
def test_a_bad_json_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(rows("one") + line + b"\n")
    with pytest.raises(BadInput, match=message) as error:
        read(tmp_path / "a.jsonl")
    assert "a.jsonl" in error.value.message


def test_the_nearest_field_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"content": "a", "id": 1}\n')
    with pytest.raises(BadInput, match="did you mean 'content'"):
        read(tmp_path / "a.jsonl", text_field="contents")


def test_parquet_columns_are_read_by_name(tmp_path: Path) -> None:
    table = arrow.table({"id": [1, 2, 3], "body": ["一", None, "three"]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found, skipped = read(tmp_path / "a.parquet", text_field="body")
    assert found == [(1, "一"), (3, "three")]
    assert skipped == {"row without text": 1}


@pytest.mark.parametrize(
    ("column", "message"), [("bdy", "did you mean 'body'"), ("id", "column 'id' holds int64")]
)
def test_a_wrong_parquet_column_is_refused(tmp_path: Path, column: str, message: str) -> None:
    parquet.write_table(arrow.table({"id": [1], "body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=message):
        read(tmp_path / "a.parquet", text_field=column)


def test_a_broken_parquet_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing of the kind")
    with pytest.raises(BadInput, match="not readable as Parquet"):
        read(tmp_path / "a.parquet")


def test_a_source_tree_is_read_without_what_is_hidden_generated_or_binary(tmp_path: Path) -> None:
    for name in ("a.py", "sub/b.c", ".git/config", "node_modules/x.js", "__pycache__/y.py", ".hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\0\0\0")
    (tmp_path / "latin.txt").write_bytes("né".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    found, skipped = read(tmp_path)
    assert [text for _, text in found] == ["a.py", "sub/b.c"]
    assert skipped == {
        "hidden or generated file": 4,
        "binary file": 1,
        "file that is not UTF-8": 1,
        "empty file": 1,
    }


def test_a_hidden_directory_that_is_named_outright_is_read(tmp_path: Path) -> None:
    (tmp_path / ".notes").mkdir()
    (tmp_path / ".notes" / "a.txt").write_text("a")
    assert len(read(tmp_path / ".notes")[0]) == 1
    assert len(read(tmp_path / ".notes" / "a.txt")[0]) == 1


def test_a_late_line_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xb0\xa1\n")
    with pytest.raises(BadInput, match="line 2 is not UTF-8"):
        read(tmp_path / "a.txt", document="line")


def test_globs_and_repeated_sources_name_a_file_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    found, _ = read(tmp_path / "*.txt", tmp_path / "a.txt", tmp_path / "c.md")
    assert [text for _, text in found] == ["a.txt", "b.txt", "c.md"]


def test_a_store_url_is_read_like_a_path() -> None:
    place = StoreDir(f"memory://corpus-{uuid.uuid4().hex}")
    place.write("deep/a.jsonl", rows("from afar"))
    place.write(".git/b.jsonl", b"not even JSON")
    assert read(place.url)[0] == [(1, "from afar")]


@pytest.mark.parametrize("source", ["missing.txt", "missing/*.txt", "empty"])
def test_a_source_that_names_nothing_is_reported(tmp_path: Path, source: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFound, match=source.replace("*", r"\*")):
        read(tmp_path / source)


def test_the_standard_library_is_a_source() -> None:
    files = list_sources(Corpus(), Counter())
    names = {file.name for file in files}
    assert f"{STDLIB}/json/decoder.py" in names
    assert not any("site-packages" in name for name in names)
    topics = [file for file in files if file.kind == "topics"]
    texts = [d.text for d in documents(topics, Corpus(), ReadProgress())]
    assert len(texts) > 50
    assert any("assert" in text for text in texts)


def test_the_key_changes_with_the_files_and_the_table(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    corpus = Corpus(sources=(str(path),))
    key = corpus_key(corpus, list_sources(corpus, Counter()))
    assert key == corpus_key(corpus, list_sources(corpus, Counter()))
    other = corpus.model_copy(update={"validation_share": 0.2})
    assert key != corpus_key(other, list_sources(corpus, Counter()))
    path.write_text("other")
    assert key != corpus_key(corpus, list_sources(corpus, Counter()))
