"""What a GGUF file holds is read; a damaged or hostile one is refused with a sentence."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.models.gguf.reader import GgufFile
from windlass.spec.errors import BadInput, Damaged, NotFound, WindlassError

Write = Callable[..., Path]
VECTOR = np.arange(8, dtype=np.float32)


def header(*values: bytes, tensors: int = 0, version: int = 3, count: int | None = None) -> bytes:
    """A file's beginning with metadata as raw bytes."""
    return (
        b"GGUF"
        + struct.pack("<IQQ", version, tensors, len(values) if count is None else count)
        + b"".join(values)
    )


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", kind, offset)


def refusal(tmp_path: Path, content: bytes) -> WindlassError:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises((Damaged, BadInput)) as caught:
        GgufFile(path)
    return caught.value


def test_metadata_and_tensors_come_back_as_they_were_written(write: Write) -> None:
    values: dict[str, Any] = {"a": "text é", "b": True, "c": 7, "d": 0.5, "e": ["x", ""], "big": 1 << 40}
    file = GgufFile(
        write(values | {"f": np.arange(3, dtype=np.int32)}, {"m": VECTOR.reshape(2, 4), "v": VECTOR})
    )
    assert {key: file.metadata[key] for key in values} == values
    assert file.metadata["f"].tolist() == [0, 1, 2]
    assert file.tensors["m"].shape == (2, 4)
    assert file.rows(file.tensors["m"])[1].tobytes() == VECTOR[4:].tobytes()


def test_a_model_of_several_parts_is_read_through_its_first(write: Write) -> None:
    count = {"split.count": 2, "split.tensors.count": 2}
    first = write({**count, "split.no": 0}, {"a": VECTOR}, "m-00001-of-00002.gguf")
    second = write({**count, "split.no": 1}, {"b": 2 * VECTOR}, "m-00002-of-00002.gguf")
    file = GgufFile(first)
    assert file.rows(file.tensors["b"]).tobytes() == (2 * VECTOR).tobytes()
    with pytest.raises(BadInput, match="one of 2 parts"):
        GgufFile(second)
    second.unlink()
    with pytest.raises(NotFound, match="00002-of-00002"):
        GgufFile(first)


def test_a_file_that_was_cut_off_anywhere_is_refused(write: Write, tmp_path: Path) -> None:
    whole = write({"a": "text", "b": ["x", "y"], "c": np.arange(5)}, {"m": VECTOR.reshape(2, 4)}).read_bytes()
    for length in range(len(whole) - 31):
        assert str(tmp_path) in str(refusal(tmp_path, whole[:length]))


def test_other_files_and_versions_are_named(tmp_path: Path) -> None:
    assert "does not begin with 'GGUF'" in str(refusal(tmp_path, b"PK\x03\x04" + bytes(60)))
    assert "version 1" in str(refusal(tmp_path, header(version=1)))
    assert "big-endian" in str(refusal(tmp_path, b"GGUF" + struct.pack(">IQQ", 3, 0, 0)))


def test_counts_beyond_the_file_are_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    assert "more than fit" in str(refusal(tmp_path, header(count=1 << 60)))
    assert "more than fit" in str(refusal(tmp_path, header(tensors=1 << 62)))
    long = text("k") + struct.pack("<IIQ", 9, 4, 1 << 61)
    assert "more than fit" in str(refusal(tmp_path, header(long)))
    assert "more than fit" in str(refusal(tmp_path, header(struct.pack("<Q", (1 << 64) - 1))))


def test_lists_in_lists_unknown_types_and_other_encodings_are_refused(tmp_path: Path) -> None:
    nested = text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(12)
    assert "not known or nested" in str(refusal(tmp_path, header(nested)))
    assert "unknown type 77" in str(refusal(tmp_path, header(text("k") + struct.pack("<I", 77) + bytes(8))))
    assert "not UTF-8" in str(refusal(tmp_path, header(text(b"\xff\xfe") + struct.pack("<I", 0) + bytes(8))))
    twice = text("k") + struct.pack("<IB", 0, 1)
    assert "there twice" in str(refusal(tmp_path, header(twice, twice)))


@pytest.mark.parametrize(
    ("infos", "sentence"),
    [
        ([tensor("a", [])], "0 dimensions"),
        ([tensor("a", [2] * 5)], "5 dimensions"),
        ([tensor("a", [0])], "impossible size"),
        ([tensor("a", [1 << 63, 1 << 63])], "impossible size"),
        ([tensor("a", [33], kind=8)], "not a multiple of the 32"),
        ([tensor("a", [4], kind=999)], "type 999"),
        ([tensor("a", [4], offset=7)], "aligned"),
        ([tensor("a", [4], offset=1 << 63)], "but the file has"),
        ([tensor("a", [1 << 20])], "but the file has"),
        ([tensor("a", [16]), tensor("b", [16], offset=32)], "after 'a'"),
        ([tensor("a", [4]), tensor("a", [4], offset=32)], "there twice"),
        ([tensor("n" * 2000, [4])], "more than 1024"),
    ],
)
def test_impossible_tensors_are_refused(tmp_path: Path, infos: list[bytes], sentence: str) -> None:
    content = header(tensors=len(infos)) + b"".join(infos)
    assert sentence in str(refusal(tmp_path, content + bytes(128)))


@pytest.mark.parametrize("alignment", [0, 3, 1 << 30])
def test_an_alignment_that_is_no_power_of_two_is_refused(tmp_path: Path, alignment: int) -> None:
    value = text("general.alignment") + struct.pack("<II", 4, alignment)
    assert "general.alignment" in str(refusal(tmp_path, header(value)))


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_changed_bytes_never_raise_anything_but_our_errors(tiny_llama: Path, data: st.DataObject) -> None:
    content = bytearray(tiny_llama.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 1500))] = data.draw(st.integers(0, 255))
    changed = tiny_llama.with_name("changed.gguf")
    changed.write_bytes(content)
    with contextlib.suppress(WindlassError):
        file = GgufFile(changed)
        assert all(file.rows(info).size == info.nbytes for info in file.tensors.values())
