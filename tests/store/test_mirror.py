from pathlib import Path
from typing import Any

import pytest

from windlass.spec.errors import Damaged, NotFound
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow


def finished(path: Path, **files: bytes) -> Path:
    """A finished directory with these files."""
    writer = DirectoryWriter(StoreDir(path))
    for name, data in files.items():
        writer.write(name, data)
    writer.commit({"kind": "checkpoint"})
    return path


def test_a_directory_comes_back_as_it_was(place: StoreDir, tmp_path: Path) -> None:
    one = finished(tmp_path / "one", a=b"alpha", b=b"beta" * 1000)
    mirror = Mirror(place)
    assert mirror.push(one) == 4005
    assert mirror.names() == ["one"]
    mirror.fetch("one", tmp_path / "back")
    assert verify(StoreDir(tmp_path / "back")) == verify(StoreDir(one))
    assert (tmp_path / "back" / "b").read_bytes() == b"beta" * 1000
    assert mirror.check("one") == verify(StoreDir(one))


def test_what_two_directories_have_in_common_is_sent_and_kept_once(place: StoreDir, tmp_path: Path) -> None:
    mirror = Mirror(place)
    mirror.push(finished(tmp_path / "one", a=b"same", b=b"first"))
    assert mirror.push(finished(tmp_path / "two", a=b"same", b=b"2nd")) == 3
    assert len(place.names("objects")) == 3


def test_forgetting_one_leaves_what_the_other_refers_to(place: StoreDir, tmp_path: Path) -> None:
    mirror = Mirror(place)
    mirror.push(finished(tmp_path / "one", a=b"same", b=b"first"))
    mirror.push(finished(tmp_path / "two", a=b"same", b=b"second"))
    assert mirror.retain(["two"]) == ["one"]
    mirror.check("two")
    assert len(place.names("objects")) == 2


def test_objects_without_manifest_are_nothing_and_go_away(place: StoreDir, tmp_path: Path) -> None:
    mirror = Mirror(place)
    place.write("objects/" + "0" * 64, b"its writer died")
    assert mirror.names() == []
    mirror.push(finished(tmp_path / "one", a=b"x"))
    mirror.retain(["one"])
    assert len(place.names("objects")) == 1


def test_a_push_that_is_stopped_leaves_no_directory_and_continues_where_it_was(
    place: StoreDir, tmp_path: Path
) -> None:
    one, mirror = finished(tmp_path / "one", b=b"12345", a=b"678"), Mirror(place)
    answers = iter([False, True])
    assert mirror.push(one, stopped=lambda: next(answers)) == 3
    assert mirror.names() == []
    assert mirror.push(one) == 5
    mirror.check("one")


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_a_damaged_object_is_found_by_its_digest(place: StoreDir, tmp_path: Path, harm: str) -> None:
    mirror = Mirror(place)
    mirror.push(finished(tmp_path / "one", a=b"these bytes"))
    (name,) = place.names("objects")
    if harm == "remove":
        place.remove(name)
    else:
        place.write(name, b"those bytes" if harm == "flip" else b"these byt")
    for work in (lambda: mirror.check("one"), lambda: mirror.fetch("one", tmp_path / "back")):
        with pytest.raises(Damaged, match=name):
            work()
    assert not (tmp_path / "back" / "manifest.json").exists()
    assert not (tmp_path / "back" / "a").exists()


def test_an_object_cut_short_is_sent_again(place: StoreDir, tmp_path: Path) -> None:
    one, mirror = finished(tmp_path / "one", a=b"these bytes"), Mirror(place)
    mirror.push(one)
    (name,) = place.names("objects")
    place.write(name, b"these")
    assert mirror.push(one) == 11
    mirror.check("one")


def test_damage_on_the_way_out_does_not_reach_the_mirror(place: StoreDir, tmp_path: Path) -> None:
    one = finished(tmp_path / "one", a=b"these bytes")
    (one / "a").write_bytes(b"those bytes")
    with pytest.raises(Damaged, match="differ"):
        Mirror(place).push(one)
    assert place.names() == []


def test_what_another_swept_away_meanwhile_is_sent_again(
    place: StoreDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, mirror = finished(tmp_path / "one", a=b"first", b=b"second"), Mirror(place)
    send, swept = Mirror._send, iter([True])

    def send_and_sweep(self: Mirror, *args: Any) -> None:
        send(self, *args)
        if next(swept, False):
            Mirror(place).retain([])

    monkeypatch.setattr(Mirror, "_send", send_and_sweep)
    mirror.push(one)
    mirror.check("one")


def test_files_of_one_content_are_sent_once(place: StoreDir, tmp_path: Path) -> None:
    assert Mirror(place).push(finished(tmp_path / "one", a=b"same", b=b"same")) == 4
    Mirror(place).fetch("one", tmp_path / "back")
    verify(StoreDir(tmp_path / "back"))


def test_only_finished_directories_can_be_sent(place: StoreDir, tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    with pytest.raises(NotFound, match="has no manifest"):
        Mirror(place).push(tmp_path / "half")
    with pytest.raises(NotFound, match="no copy of absent"):
        Mirror(place).fetch("absent", tmp_path / "back")
