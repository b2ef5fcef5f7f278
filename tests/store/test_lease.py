import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.store.lease import ABSTAIN_S, BEAT_S, STALE_S, Lease, leader, vacate
from windlass.store.store_dir import StoreDir

pytestmark = pytest.mark.slow

CANDIDATE = """
import sys, time
from windlass.store.lease import Lease
from windlass.store.store_dir import StoreDir
lease = Lease(StoreDir(sys.argv[1]), sys.argv[2], "here:1")
while True:
    lease.step(time.monotonic())
    time.sleep(0.02)
"""


def test_of_all_that_create_a_file_one_learns_that_it_did(place: StoreDir) -> None:
    assert place.create("it", b"first")
    assert not place.create("it", b"second")
    assert place.read("it") == b"first"


def test_the_first_candidate_leads_at_once(place: StoreDir) -> None:
    lease = Lease(place, "one", "here:1")
    assert lease.step(0.0)
    claim = leader(place)
    assert claim is not None
    assert (claim.epoch, claim.holder, claim.address) == (1, "one", "here:1")


def test_a_second_one_waits_while_the_first_beats(place: StoreDir) -> None:
    first, second = Lease(place, "one", ""), Lease(place, "two", "")
    for number in range(12):
        assert first.step(number * BEAT_S)
        assert not second.step(number * BEAT_S)


def test_one_who_is_silent_is_followed_after_a_while_and_learns_it(place: StoreDir) -> None:
    first, second = Lease(place, "one", ""), Lease(place, "two", "")
    first.step(0.0)
    assert not second.step(100.0)
    assert not second.step(100.0 + STALE_S * 0.9)
    assert second.step(100.0 + STALE_S * 1.2)
    assert second.epoch == 2
    assert not first.step(0.3)


def test_clocks_of_candidates_need_not_agree(place: StoreDir) -> None:
    first, second = Lease(place, "one", ""), Lease(place, "two", "")
    for number in range(12):
        assert first.step(number * BEAT_S)
        assert not second.step(1e9 + number * BEAT_S)


def test_one_who_resigns_is_followed_at_once_and_abstains(place: StoreDir) -> None:
    first, second = Lease(place, "one", ""), Lease(place, "two", "")
    first.step(0.0)
    first.resign(0.1)
    assert not first.step(0.1 + ABSTAIN_S * 0.9)
    assert second.step(0.2)


def test_a_candidate_that_resigned_leads_again_when_no_other_does(place: StoreDir) -> None:
    lease = Lease(place, "one", "")
    lease.step(0.0)
    lease.resign(0.0)
    assert lease.step(ABSTAIN_S + BEAT_S)
    assert lease.epoch == 2


def test_a_process_that_knows_that_the_holder_is_dead_releases_its_lease(place: StoreDir) -> None:
    first, second = Lease(place, "one", ""), Lease(place, "two", "")
    first.step(0.0)
    vacate(place, "somebody else")
    assert not second.step(0.0)
    vacate(place, "one")
    assert second.step(BEAT_S)


def test_killed_leaders_are_followed_one_at_a_time(tmp_path: Path) -> None:
    """Real processes, SIGKILL: each epoch is led once, by one of them."""
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(_candidate(tmp_path, name)) for name in "abcd"}
        led: list[tuple[str, int]] = []
        for _ in range(3):
            claim = _next_leader(StoreDir(tmp_path), after=led[-1][1] if led else 0)
            led.append(claim)
            processes[claim[0]].send_signal(signal.SIGKILL)
        name, epoch = _next_leader(StoreDir(tmp_path), after=led[-1][1])
    assert [e for _, e in [*led, (name, epoch)]] == [1, 2, 3, 4]
    assert len({n for n, _ in [*led, (name, epoch)]}) == 4


@contextlib.contextmanager
def _candidate(folder: Path, name: str) -> "Iterator[subprocess.Popen[bytes]]":
    process = subprocess.Popen([sys.executable, "-c", CANDIDATE, str(folder), name])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _next_leader(place: StoreDir, after: int) -> tuple[str, int]:
    for _ in range(1000):
        claim = leader(place)
        if claim is not None and claim.epoch > after:
            return claim.holder, claim.epoch
        time.sleep(0.01)
    raise AssertionError(f"nobody followed epoch {after}")
