import contextlib
import os
from pathlib import Path

import pytest

from windlass.spec.errors import BadInput, NotFound, StoreFailed
from windlass.store.store_dir import StoreDir, find, opened


def test_what_is_written_is_read(place: StoreDir) -> None:
    place.write("a/b.bin", b"\x00\x01" * 1000)
    assert place.read("a/b.bin") == b"\x00\x01" * 1000


def test_a_second_write_replaces_the_first(place: StoreDir) -> None:
    place.write("x", b"first")
    place.write("x", b"2")
    assert place.read("x") == b"2"


def test_names_lists_files_at_any_depth(place: StoreDir) -> None:
    for name in ("b", "a/c", "a/d/e"):
        place.write(name, b".")
    assert place.names() == ["a/c", "a/d/e", "b"]
    assert place.names("a") == ["a/c", "a/d/e"]


def test_folders_lists_one_level(place: StoreDir) -> None:
    place.write("one/x", b".")
    place.write("two/y/z", b".")
    place.write("file", b".")
    assert place.folders() == ["one", "two"]


def test_nothing_is_listed_where_nothing_is(place: StoreDir) -> None:
    assert place.names() == []
    assert place.folders() == []


def test_removing_is_repeatable(place: StoreDir) -> None:
    place.write("tree/x", b".")
    place.remove("tree")
    place.remove("tree")
    assert not place.exists("tree/x")


def test_a_missing_file_is_named(place: StoreDir) -> None:
    with pytest.raises(NotFound, match="absent"):
        place.read("absent")


def test_a_write_that_fails_leaves_the_old_file(place: StoreDir) -> None:
    place.write("x", b"old")
    with contextlib.suppress(RuntimeError), place.writing("x") as file:
        file.write(b"new and half")
        raise RuntimeError("the writer failed")
    assert place.read("x") == b"old"
    assert place.names() == ["x"]


def test_a_file_is_fetched_to_local_disk(place: StoreDir, tmp_path: Path) -> None:
    place.write("x", b"bytes")
    place.fetch("x", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"bytes"


def test_find_takes_files_directories_and_globs(place: StoreDir) -> None:
    for name in ("a.txt", "b.txt", "sub/c.txt", "d.md"):
        place.write(name, b"text")
    assert [e.url.rsplit("/", 1)[-1] for e in find(f"{place.url}/*.txt")] == ["a.txt", "b.txt"]
    assert len(find(place.url)) == 4
    (single,) = find(f"{place.url}/a.txt")
    assert single.bytes == 4
    with opened(single.url) as file:
        assert file.read() == b"text"


def test_find_names_what_does_not_exist(place: StoreDir) -> None:
    with pytest.raises(NotFound, match="no such file"):
        find(f"{place.url}/nothing-here")


def test_the_mark_of_a_local_file_changes_with_its_content(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("a")
    before = find(str(path))[0]
    os.utime(path, (1, 1))
    assert find(str(path))[0] != before


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(BadInput, match="known: file, s3"):
        StoreDir("gopher://x")


def test_no_permission_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreFailed):
        StoreDir(tmp_path / "file").write("x", b".")
