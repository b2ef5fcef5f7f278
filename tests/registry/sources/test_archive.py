"""Archives from anywhere: what is unpacked, and every attack that is refused."""

from __future__ import annotations

import contextlib
import gzip
import io
import stat
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from windlass.registry.sources.archive import UnpackLimits, unpack
from windlass.spec.errors import BadInput, Damaged, StoreFailed, WindlassError

FILES = {
    "m/config.json": b"{}",
    "m/model.safetensors": bytes(range(256)) * 9,
    "m/run.py": b"raise SystemExit",
}


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            tar.addfile(member(name, len(content)), io.BytesIO(content))
    return out.getvalue()


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


PACKERS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "m.tar": tarred,
    "m.tar.gz": lambda files: gzip.compress(tarred(files)),
    "m.tgz": lambda files: gzip.compress(tarred(files)),
    "m.tar.zst": lambda files: zstandard.compress(tarred(files)),
    "m.zip": zipped,
    "m.whl": zipped,
}


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def unpacked(archive: Path, limits: UnpackLimits | None = None) -> dict[str, bytes]:
    target = archive.parent / "out"
    unpack(archive, target, limits=limits or UnpackLimits(keep_free=0))
    files = [path for path in target.rglob("*") if path.is_file()]
    return {path.relative_to(target).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("name", PACKERS)
def test_the_files_of_a_model_are_unpacked_and_no_code(name: str, tmp_path: Path) -> None:
    archive = write(tmp_path, name, PACKERS[name](FILES))
    assert unpacked(archive) == {name: FILES[name] for name in ("m/config.json", "m/model.safetensors")}


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize(
    "attack",
    ["../config.json", "/etc/config.json", "m/../../config.json", "m\\..\\config.json", "C:/config.json",
     "a\nb/config.json", "d/" * 40 + "config.json", "x" * 2000 + "/config.json"],
)  # fmt: skip
def test_names_that_point_elsewhere_are_refused(name: str, attack: str, tmp_path: Path) -> None:
    archive = write(tmp_path, name, PACKERS[name]({attack: b"x"}))
    with pytest.raises(BadInput, match="the name"):
        unpacked(archive)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != archive]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "a link to '/etc/passwd'"),
        (tarfile.LNKTYPE, "a link to"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.FIFOTYPE, "a pipe"),
        (b"S", "a sparse file"),
        (b"V", "of an unknown kind"),
    ],
)
def test_what_is_no_plain_file_in_a_tar_is_refused(kind: bytes, words: str, tmp_path: Path) -> None:
    block = bytearray(member("m/config.json", 0, kind, "/etc/passwd").tobuf(tarfile.GNU_FORMAT))
    archive = write(tmp_path, "m.tar", bytes(block) + bytes(1024))
    with pytest.raises(BadInput, match=words):
        unpacked(archive)


@pytest.mark.parametrize(
    ("mode", "words"), [(stat.S_IFLNK, "a link"), (stat.S_IFCHR, "a device"), (stat.S_IFIFO, "a pipe")]
)
def test_what_is_no_plain_file_in_a_zip_is_refused(mode: int, words: str, tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        info = zipfile.ZipInfo("m/config.json")
        info.external_attr = (mode | 0o644) << 16
        made.writestr(info, "/etc/passwd")
    with pytest.raises(BadInput, match=words):
        unpacked(write(tmp_path, "m.zip", out.getvalue()))


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped({"config.json": b"{}"}))
    for sign, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.index(sign) + offset
        content[at : at + 2] = struct.pack("<H", 1)
    with pytest.raises(BadInput, match="encrypted"):
        unpacked(write(tmp_path, "m.zip", bytes(content)))


@pytest.mark.parametrize("name", ["m.tar", "m.zip"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused_in_any_case_of_letters(name: str, tmp_path: Path) -> None:
    twice = {"m/config.json": b"{}", "./m//CONFIG.json": b"[]"}
    with pytest.raises(BadInput, match="occurs twice"):
        unpacked(write(tmp_path, name, PACKERS[name](twice)))


@pytest.mark.parametrize("name", PACKERS)
def test_the_number_of_entries_is_bounded(name: str, tmp_path: Path) -> None:
    archive = write(tmp_path, name, PACKERS[name]({f"{i}.txt": b"" for i in range(30)}))
    with pytest.raises(BadInput, match="more than 20 entries"):
        unpacked(archive, UnpackLimits(entries=20, keep_free=0))


@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("file", ["m/model.safetensors", "m/picture.png"])
def test_the_bytes_that_come_out_are_bounded(name: str, file: str, tmp_path: Path) -> None:
    archive = write(tmp_path, name, PACKERS[name]({file: bytes(300_000)}))
    with pytest.raises(BadInput, match="unpacks to more than"):
        unpacked(archive, UnpackLimits(bytes=200_000, keep_free=0))


@pytest.mark.parametrize("name", ["m.tar.gz", "m.tar.zst", "m.zip"])
@pytest.mark.parametrize("file", ["m/model.safetensors", "m/picture.png"])
def test_a_bomb_ends_at_the_ratio(name: str, file: str, tmp_path: Path) -> None:
    archive = write(tmp_path, name, PACKERS[name]({file: bytes(8 << 20)}))
    with pytest.raises(BadInput, match="times its size"):
        unpacked(archive, UnpackLimits(free_bytes=1 << 20, keep_free=0))
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert written <= 2 << 20


def test_a_zip_that_declares_less_than_it_holds_is_damaged(tmp_path: Path) -> None:
    content = bytearray(zipped({"model.safetensors": bytes(1 << 20)}))
    for sign, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.index(sign) + offset
        content[at : at + 4] = struct.pack("<I", 10)
    with pytest.raises(Damaged, match="not readable as an archive"):
        unpacked(write(tmp_path, "m.zip", bytes(content)))


def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    header = member("long", 1 << 32, tarfile.XHDTYPE).tobuf(tarfile.GNU_FORMAT)
    with pytest.raises(BadInput, match="a header of"):
        unpacked(write(tmp_path, "m.tar", header + bytes(1024)))


def test_a_negative_length_is_refused(tmp_path: Path) -> None:
    block = bytearray(member("config.json").tobuf(tarfile.GNU_FORMAT))
    block[124:136] = b"\xff" * 12
    block[148:156] = b" " * 8
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    with pytest.raises((BadInput, Damaged)):
        unpacked(write(tmp_path, "m.tar", bytes(block) + bytes(1024)))


def test_a_disk_that_is_too_small_is_said_before_it_is_full(tmp_path: Path) -> None:
    archive = write(tmp_path, "m.tar", tarred(FILES))
    with pytest.raises(StoreFailed, match="more than is free on the disk"):
        unpacked(archive, UnpackLimits(keep_free=1 << 60))


@pytest.mark.parametrize("name", PACKERS)
def test_an_archive_that_was_cut_off_is_damaged(name: str, tmp_path: Path) -> None:
    content = PACKERS[name](FILES)
    with pytest.raises(Damaged, match="fetch it again"):
        unpacked(write(tmp_path, name, content[: len(content) // 3]))


@pytest.mark.parametrize("name", PACKERS)
def test_what_is_no_archive_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="not readable as an archive"):
        unpacked(write(tmp_path, name, b"<html>not found</html>" * 40))


@pytest.mark.parametrize("name", PACKERS)
def test_an_empty_archive_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is empty"):
        unpacked(write(tmp_path, name, PACKERS[name]({})))


@given(name=st.sampled_from(list(PACKERS)), data=st.data())
def test_damaged_archives_give_our_errors_and_write_nowhere_else(name: str, data: st.DataObject) -> None:
    content = bytearray(PACKERS[name](FILES))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder) / "inner"
        inner.mkdir()
        archive = write(inner, name, bytes(content))
        with contextlib.suppress(WindlassError):
            unpack(archive, inner / "out", limits=UnpackLimits(bytes=1 << 20, keep_free=0))
        assert {path.name for path in Path(folder).iterdir()} == {"inner"}
        assert {path.name for path in inner.iterdir()} <= {name, "out"}
