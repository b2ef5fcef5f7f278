"""Copies that are made in the background, to a store that may be slow, broken or both."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates
from windlass.spec.errors import StoreFailed
from windlass.spec.protocol.backoff import Backoff
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir
from windlass.store.uploads import Uploads

QUICK = Backoff(first_s=0.02, max_s=0.2)
MINUTE = 60.0


class Told:
    """What uploads said, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self._said = threading.Condition()

    def __call__(self, name: str, outcome: str, facts: dict[str, Any]) -> None:
        with self._said:
            self.events.append((name, outcome, facts))
            self._said.notify_all()

    def outcomes(self) -> list[tuple[str, str]]:
        return [(name, outcome) for name, outcome, _ in self.events]

    def await_outcome(self, outcome: str) -> None:
        with self._said:
            assert self._said.wait_for(lambda: any(o == outcome for _, o in self.outcomes()), MINUTE)


def step(folder: Path, number: int, size: int = 100) -> Path:
    path = folder / f"step-{number:08d}"
    writer = DirectoryWriter(StoreDir(path))
    writer.write("part-00000.safetensors", bytes([number % 256]) * size)
    writer.write("frozen.safetensors", b"the same in all")
    writer.commit()
    return path


def newest(count: int) -> Callable[[list[str]], list[str]]:
    return lambda names: names[-count:]


def uploads_to(url: str, told: Told, keep: int = 2) -> Uploads:
    return Uploads(url, retain=newest(keep), tell=told, backoff=QUICK, seed=1)


def test_what_is_offered_arrives_and_the_oldest_go(place: StoreDir, tmp_path: Path) -> None:
    told = Told()
    uploads = uploads_to(place.url, told)
    for number in (1, 2, 3):
        uploads.offer(step(tmp_path, number))
        assert uploads.finish(MINUTE)
    mirror = Mirror(place)
    assert mirror.names() == ["step-00000002", "step-00000003"]
    for name in mirror.names():
        mirror.check(name)
    assert [outcome for _, outcome in told.outcomes()] == ["sent"] * 3
    assert told.events[2][2]["bytes"] == 100  # the frozen file was there
    assert uploads.close()


class Slow(StoreDir):
    """A store that does not answer before it is let."""

    gate = threading.Event()
    entered = threading.Event()

    def sizes(self, prefix: str = "") -> dict[str, int]:
        self.entered.set()
        assert self.gate.wait(MINUTE)
        return super().sizes(prefix)


def test_a_store_that_falls_behind_gets_the_newest_and_is_reported_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.uploads.StoreDir", Slow)
    told = Told()
    uploads = uploads_to(str(tmp_path / "there"), told)
    uploads.offer(step(tmp_path, 1))
    assert Slow.entered.wait(MINUTE)
    for number in (2, 3, 4):
        uploads.offer(step(tmp_path, number))
    assert uploads.pending == [f"step-0000000{n}" for n in (2, 3, 4, 1)]
    assert not uploads.finish(0.01)
    Slow.gate.set()
    assert uploads.finish(MINUTE)
    assert told.outcomes() == [
        ("step-00000001", "sent"),
        ("step-00000002", "skipped"),
        ("step-00000003", "skipped"),
        ("step-00000004", "sent"),
    ]


def test_a_store_that_fails_is_retried_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(range(3))
    push = Mirror.push

    def fail_thrice(self: Mirror, *args: Any, **more: Any) -> int:
        if next(failures, None) is not None:
            raise StoreFailed("the store does not answer")
        return push(self, *args, **more)

    monkeypatch.setattr(Mirror, "push", fail_thrice)
    told = Told()
    uploads = uploads_to(str(tmp_path / "there"), told)
    uploads.offer(step(tmp_path, 1))
    assert uploads.finish(MINUTE)
    assert [outcome for _, outcome in told.outcomes()] == ["failed"] * 3 + ["sent"]
    assert told.events[-1][2]["attempts"] == 4


def test_a_newer_one_takes_the_place_of_one_that_fails(tmp_path: Path) -> None:
    told = Told()
    (tmp_path / "there").write_text("a file where a directory should be")
    uploads = Uploads(
        str(tmp_path / "there"), retain=newest(2), tell=told, backoff=Backoff(MINUTE, MINUTE), seed=1
    )
    uploads.offer(step(tmp_path, 1))
    told.await_outcome("failed")
    (tmp_path / "there").unlink()
    uploads.offer(step(tmp_path, 2))
    assert uploads.finish(MINUTE)
    assert told.outcomes()[-1] == ("step-00000002", "sent")


def test_a_directory_that_is_damaged_or_gone_is_reported_and_given_up(tmp_path: Path) -> None:
    told = Told()
    uploads = uploads_to(str(tmp_path / "there"), told)
    damaged = step(tmp_path, 1)
    (damaged / "frozen.safetensors").write_bytes(b"not the same   ")
    for path in (damaged, tmp_path / "step-00000009"):
        uploads.offer(path)
        assert uploads.finish(MINUTE)
    assert [outcome for _, outcome in told.outcomes()] == ["failed", "failed"]
    assert "differ" in told.events[0][2]["message"]


def test_what_is_closed_sends_nothing_more(tmp_path: Path) -> None:
    told = Told()
    uploads = uploads_to(str(tmp_path / "file" / "there"), told)
    (tmp_path / "file").write_text("in the way")
    uploads.offer(step(tmp_path, 1))
    told.await_outcome("failed")
    assert not uploads.close()
    assert uploads.finish(MINUTE)


@pytest.fixture
def bad_network(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A network that fails in front of the real S3 server; s3fs connects to it from here on."""
    import s3fs

    there = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    assert there.hostname is not None
    assert there.port is not None
    with FaultProxy(there.hostname, there.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # the library asks again too, and longer than a test may
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.slow
def test_nothing_is_lost_over_a_network_that_fails(
    bad_network: FaultProxy, s3_url: str, tmp_path: Path
) -> None:
    bad_network.faults = FaultRates(late=0.1, late_s=0.2, cut=0.12, error=0.12)
    place, told = StoreDir(f"{s3_url}/faults-{tmp_path.name}"), Told()
    uploads = uploads_to(place.url, told, keep=3)
    for number in range(1, 6):
        uploads.offer(step(tmp_path, number, size=300_000))
        assert uploads.finish(3 * MINUTE)
    bad_network.faults = FaultRates()
    mirror = Mirror(place)
    assert mirror.names() == ["step-00000003", "step-00000004", "step-00000005"]
    for name in mirror.names():
        mirror.fetch(name, tmp_path / "back" / name)
        assert verify(StoreDir(tmp_path / "back" / name)) == verify(StoreDir(tmp_path / name))
    assert bad_network.counts["cut"] > 0
    assert bad_network.counts["error"] > 0


@pytest.mark.slow
def test_a_store_that_is_away_is_a_failure_of_ours_by_name(bad_network: FaultProxy, s3_url: str) -> None:
    bad_network.faults = FaultRates(cut=1.0)
    place = StoreDir(f"{s3_url}/away")
    with pytest.raises(StoreFailed, match="away"):
        place.write("x", b"x")
