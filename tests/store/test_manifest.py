import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.spec.errors import Damaged
from windlass.store.manifest import DirectoryWriter, load_manifest, read_verified, verify
from windlass.store.store_dir import StoreDir


def write_directory(place: StoreDir) -> None:
    writer = DirectoryWriter(place)
    writer.write("weights", b"w" * 5000)
    writer.write("sub/state.json", b"{}")
    writer.commit({"step": 3})


def test_a_directory_exists_once_its_manifest_does(place: StoreDir) -> None:
    writer = DirectoryWriter(place)
    writer.write("weights", b"half of it")
    assert load_manifest(place) is None
    writer.commit()
    assert load_manifest(place) is not None


def test_a_finished_directory_is_verified(place: StoreDir) -> None:
    write_directory(place)
    manifest = verify(place)
    assert manifest.meta == {"step": 3}
    assert manifest.bytes == 5002
    assert read_verified(place, "weights", manifest) == b"w" * 5000


def test_writing_again_unmakes_the_directory_first(place: StoreDir) -> None:
    write_directory(place)
    DirectoryWriter(place)
    assert load_manifest(place) is None


def test_several_writers_make_one_directory(place: StoreDir) -> None:
    opener, other = DirectoryWriter(place), DirectoryWriter(place, join=True)
    opener.write("part-0", b"mine")
    other.write("part-1", b"theirs")
    opener.include(other.records)
    opener.commit()
    assert sorted(verify(place).files) == ["part-0", "part-1"]


def test_a_writer_that_joins_leaves_the_manifest_alone(place: StoreDir) -> None:
    write_directory(place)
    DirectoryWriter(place, join=True)
    assert load_manifest(place) is not None


def test_files_can_be_verified_one_by_one(place: StoreDir) -> None:
    write_directory(place)
    place.write("weights", b"x" * 5000)
    verify(place, names=["sub/state.json"])
    with pytest.raises(Damaged, match="weights"):
        verify(place, names=["weights"])


@pytest.mark.parametrize("harm", [b"w" * 4999, b"w" * 4999 + b"x", b"", b"w" * 5001])
def test_changed_bytes_are_damage(place: StoreDir, harm: bytes) -> None:
    write_directory(place)
    place.write("weights", harm)
    with pytest.raises(Damaged, match="weights"):
        verify(place)


def test_a_missing_file_is_damage(place: StoreDir) -> None:
    write_directory(place)
    place.remove("weights")
    with pytest.raises(Damaged, match="missing"):
        verify(place)


def test_debris_cannot_be_verified(place: StoreDir) -> None:
    place.write("weights", b"half of it")
    with pytest.raises(Damaged, match="did not finish"):
        verify(place)


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"format": "windlass-manifest-1"}', b'{"format": "other-9", "files": {}}']
)
def test_a_broken_manifest_is_damage_not_a_crash(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(Damaged):
        load_manifest(StoreDir(tmp_path))


def test_the_digest_names_content_not_metadata(tmp_path: Path) -> None:
    for name, meta in (("a", {"x": 1}), ("b", {"x": 2})):
        writer = DirectoryWriter(StoreDir(tmp_path / name))
        writer.write("f", b"same")
        writer.commit(meta)
    first, second = (load_manifest(StoreDir(tmp_path / n)) for n in "ab")
    assert first is not None
    assert second is not None
    assert first.digest == second.digest


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(0, 4999), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path: Path, at: int, bit: int) -> None:
    place = StoreDir(tmp_path)
    write_directory(place)
    data = bytearray(place.read("weights"))
    data[at] ^= 1 << bit
    place.write("weights", bytes(data))
    with pytest.raises(Damaged):
        verify(place)


WRITER = """
import sys
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
number = 0
while True:
    number += 1
    writer = DirectoryWriter(StoreDir(f"{sys.argv[1]}/{number}"))
    for part in range(4):
        writer.write(f"part-{part}", bytes([number % 256]) * 300_000)
    writer.commit({"number": number})
    print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", range(6))
def test_a_killed_writer_leaves_whole_directories_and_debris_and_nothing_between(
    tmp_path: Path, after: int
) -> None:
    script = tmp_path / "writer.py"
    script.write_text(textwrap.dedent(WRITER))
    target = tmp_path / "out"
    target.mkdir()
    writer = subprocess.Popen([sys.executable, str(script), str(target)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    finished = [int(writer.stdout.readline()) for _ in range(after + 1)]
    while not list((target / str(finished[-1] + 1)).glob(f"part-{after % 4}*")):
        pass  # the kill lands in the middle of a directory
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    finished += [int(line) for line in writer.stdout]
    writer.stdout.close()
    whole = {int(p.name) for p in target.iterdir() if load_manifest(StoreDir(p)) is not None}
    assert set(finished) <= whole
    for number in whole:
        assert verify(StoreDir(target / str(number))).meta == {"number": number}
    assert json.loads((target / "1" / "manifest.json").read_text())["format"] == "windlass-manifest-1"
