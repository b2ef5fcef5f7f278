"""The disk cache and the shard cache on it, over stores that are directories, and over one that errs."""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.corpus.remote.cache import CacheFacts, ShardCache
from windlass.corpus.remote.disk_cache import DiskCache, is_held
from windlass.corpus.remote.eviction import POLICIES
from windlass.corpus.remote.prefetch import Ahead
from windlass.corpus.remote.published import Origin
from windlass.spec.errors import BadInput, Damaged
from windlass.store.manifest import DirectoryWriter, Manifest, load_manifest
from windlass.store.store_dir import StoreDir

SIZE = 1000


def name_of(number: int) -> str:
    return f"train/tokens-{number:05d}.bin"


def content_of(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def stored(url: str | Path, shards: int = 8) -> Manifest:
    writer = DirectoryWriter(StoreDir(url))
    for number in range(shards):
        writer.write(name_of(number), content_of(number))
    return writer.commit()


def cache_on(
    url: str | Path, folder: Path, *, shards: int = 3, policy: str = "lru", corpus: str = "a" * 64
) -> ShardCache:
    """Open a cache with room for so many shards."""
    manifest = load_manifest(StoreDir(url))
    assert manifest is not None
    origin = Origin(str(url), str(folder), policy, shards * SIZE, prefetch=2)
    return ShardCache(origin, corpus, manifest.files)


def read(cache: ShardCache, number: int) -> bytes:
    with cache.opened(name_of(number)) as file:
        return os.pread(file.fileno(), SIZE, 0)


def here(folder: Path) -> list[int]:
    """Return the numbers of the shards that are on disk, whichever corpus they are of."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("*/*.shard"))


def until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    stored(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_first_read_fetches_and_the_second_does_not(store: Path, folder: Path) -> None:
    cache = cache_on(store, folder)
    assert read(cache, 1) == content_of(1)
    assert read(cache, 1) == content_of(1)
    facts = cache.facts()
    assert (facts.misses, facts.hits, facts.fetched, facts.fetched_bytes) == (1, 1, 1, SIZE)


def test_nothing_is_made_before_the_first_read(store: Path, folder: Path) -> None:
    assert cache_on(store, folder).facts() == CacheFacts()
    assert not folder.exists()


@settings(max_examples=40)
@given(st.sampled_from(sorted(POLICIES)), st.integers(1, 4), st.lists(st.integers(0, 7), max_size=30))
def test_the_limit_holds_on_disk_and_every_read_is_right(
    tmp_path_factory: pytest.TempPathFactory, policy: str, room: int, reads: list[int]
) -> None:
    base = tmp_path_factory.mktemp("law")
    stored(base / "store")
    one, two = (cache_on(base / "store", base / "cache", shards=room, policy=policy) for _ in range(2))
    for turn, number in enumerate(reads):
        assert read(two if turn % 3 else one, number) == content_of(number)
        assert len(here(base / "cache")) <= room
        assert number in here(base / "cache")


def test_the_policy_that_is_named_decides(store: Path, folder: Path, tmp_path: Path) -> None:
    for policy, kept in {"lru": [0, 2, 3], "mru": [1, 2, 3]}.items():
        cache = cache_on(store, tmp_path / policy, policy=policy)
        for number in (0, 1, 2, 0, 3):
            read(cache, number)
        assert here(tmp_path / policy) == kept


def test_a_limit_below_one_shard_is_refused(store: Path, folder: Path) -> None:
    with pytest.raises(BadInput, match=r"bytes: 0 B is less than one shard"):
        read(cache_on(store, folder, shards=0), 0)


def test_a_smaller_limit_shrinks_what_is_there(store: Path, folder: Path) -> None:
    roomy = cache_on(store, folder, shards=5)
    for number in range(5):
        read(roomy, number)
    read(cache_on(store, folder, shards=2), 4)
    assert here(folder) == [3, 4]


def test_a_shard_that_is_evicted_stays_readable_where_it_is_open(store: Path, folder: Path) -> None:
    cache = cache_on(store, folder, shards=1)
    with cache.opened(name_of(0)) as file:
        read(cache, 1)
        assert here(folder) == [1]
        assert os.pread(file.fileno(), SIZE, 0) == content_of(0)


def test_what_one_process_fetched_the_next_one_finds(store: Path, folder: Path) -> None:
    read(cache_on(store, folder), 1)
    later = cache_on(store, folder)
    read(later, 1)
    assert later.facts().misses == 0


def test_a_shard_that_many_want_at_once_is_fetched_once(store: Path, folder: Path) -> None:
    caches = [cache_on(store, folder) for _ in range(6)]
    threads = [threading.Thread(target=read, args=(cache, 1)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(cache.facts().fetched for cache in caches) == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once a process waits for the download of another."""
    seen, wait_for = threading.Event(), DiskCache.wait_for

    def watched(disk: DiskCache, *args: Any) -> Any:
        seen.set()
        return wait_for(disk, *args)

    monkeypatch.setattr(DiskCache, "wait_for", watched)
    return seen


def test_a_reader_that_finds_the_space_taken_by_a_fetch_waits_for_it(
    store: Path, folder: Path, waits: threading.Event
) -> None:
    """The room for one shard is taken by a part that another process, played by us, is filling."""
    disk = DiskCache(folder, "lru", SIZE)
    with disk.policy() as policy:
        policy.admit(f"{'a' * 16}/train-tokens-00000", SIZE)
        part = disk.new_part(f"{'a' * 16}/train-tokens-00000")
    got: list[bytes] = []
    cache = cache_on(store, folder, shards=1)
    thread = threading.Thread(target=lambda: got.append(read(cache, 1)), daemon=True)
    thread.start()
    assert waits.wait(60)
    assert got == []
    part.close()  # it died
    thread.join(60)
    assert got == [content_of(1)]


def test_one_who_wants_what_another_fetches_has_it_from_there(
    store: Path, folder: Path, waits: threading.Event
) -> None:
    key = f"{'a' * 16}/train-tokens-00001"
    disk = DiskCache(folder, "lru", 3 * SIZE)
    with disk.policy() as policy:
        policy.admit(key, SIZE)
        part = disk.new_part(key)
    cache, got = cache_on(store, folder), list[bytes]()
    thread = threading.Thread(target=lambda: got.append(read(cache, 1)), daemon=True)
    part.write(content_of(1)[:500])
    part.flush()
    thread.start()
    assert waits.wait(60)
    part.write(content_of(1)[500:])
    disk.finish(key, part)
    thread.join(60)  # though the part is still open
    assert got == [content_of(1)]
    assert cache.facts().fetched == 0
    part.close()


class Erring(MemoryFileSystem):
    """A store that returns wrong bytes `lies` times, and counts its requests."""

    protocol = "erring"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    lies = requests = 0

    def _open(self, path: str, mode: str = "rb", **options: Any) -> IO[bytes]:
        file: IO[bytes] = super()._open(path, mode, **options)
        if mode == "rb" and path.endswith(".bin"):
            Erring.requests += 1
            if Erring.lies > 0:
                Erring.lies -= 1
                return self._lie()
        return file

    @staticmethod
    def _lie() -> IO[bytes]:
        return io.BytesIO(bytes(SIZE))


@pytest.fixture
def erring() -> str:
    fsspec.register_implementation("erring", Erring, clobber=True)
    Erring.lies = 0
    stored("erring://corpus")
    Erring.requests = 0
    return "erring://corpus"


def test_wrong_bytes_are_fetched_once_more(erring: str, folder: Path) -> None:
    Erring.lies = 1
    assert read(cache_on(erring, folder), 2) == content_of(2)
    assert Erring.requests == 2


def test_bytes_that_are_wrong_twice_are_refused_and_leave_nothing(erring: str, folder: Path) -> None:
    Erring.lies = 2
    cache = cache_on(erring, folder, policy="mru")
    with pytest.raises(Damaged, match=r"erring://corpus/train/tokens-00002.bin: 1000 bytes of digest"):
        read(cache, 2)
    assert list(folder.glob("*/*.shard*")) == []
    for number in (3, 4, 5):
        read(cache, number)
    assert here(folder) == [3, 4, 5]  # its room is free


def test_a_shard_that_the_store_lost_is_named(store: Path, folder: Path) -> None:
    (store / name_of(5)).unlink()
    with pytest.raises(Damaged, match=r"tokens-00005.bin: listed in manifest.json but missing"):
        read(cache_on(store, folder), 5)


def test_the_debris_of_the_dead_is_cleared_and_the_work_of_the_living_is_not(
    store: Path, folder: Path
) -> None:
    disk = DiskCache(folder, "lru", 3 * SIZE)
    disk.new_part("a/dead").close()
    living = disk.new_part("a/living")
    read(cache_on(store, folder), 0)
    assert [path.name for path in folder.glob("a/*")] == ["living.shard.part"]
    living.close()


def test_a_shard_that_is_only_in_the_index_takes_no_room(store: Path, folder: Path) -> None:
    with DiskCache(folder, "mru", 3 * SIZE).policy() as policy:
        policy.admit(f"{'a' * 16}/train-tokens-00007", SIZE)  # its process died before it had a part
    cache = cache_on(store, folder, policy="mru")
    for number in range(3):
        read(cache, number)
    assert here(folder) == [0, 1, 2]


@pytest.mark.parametrize("index", [b"", b"{", b'{"format": "windlass-cache-1", "policy": "lru", "state": 3}'])
def test_an_index_that_cannot_be_read_is_built_again_from_the_files(
    store: Path, folder: Path, index: bytes
) -> None:
    cache = cache_on(store, folder)
    for number in range(3):
        read(cache, number)
    (folder / "index.json").write_bytes(index)
    read(cache, 3)
    assert here(folder) == [1, 2, 3]


def test_a_shard_that_was_cut_short_is_fetched_again(store: Path, folder: Path) -> None:
    cache = cache_on(store, folder)
    read(cache, 0)
    next(folder.glob("*/*.shard")).write_bytes(b"short")
    assert read(cache, 0) == content_of(0)
    assert cache.facts().misses == 2


def test_a_cache_that_is_removed_under_way_begins_anew(store: Path, folder: Path) -> None:
    cache = cache_on(store, folder)
    read(cache, 0)
    shutil.rmtree(folder)
    assert read(cache, 0) == content_of(0)
    assert here(folder) == [0]


def test_shards_of_a_corpus_that_is_not_open_are_evicted_first(store: Path, folder: Path) -> None:
    old = cache_on(store, folder, policy="mru", corpus="b" * 64)
    for number in (5, 6, 7):
        read(old, number)
    old.close()
    cache = cache_on(store, folder, policy="mru")
    for number in (0, 1, 2):
        read(cache, number)
    assert here(folder) == [0, 1, 2]


def test_shards_of_a_corpus_in_use_go_as_the_policy_says(store: Path, folder: Path) -> None:
    other = cache_on(store, folder, policy="mru", corpus="b" * 64)
    for number in (5, 6, 7):
        read(other, number)
    cache = cache_on(store, folder, policy="mru")
    for number in (0, 1, 2):
        read(cache, number)
    assert here(folder) == [2, 5, 6]


def test_what_is_held_is_spared_where_there_is_a_choice(store: Path, folder: Path) -> None:
    one, two = cache_on(store, folder, policy="mru"), cache_on(store, folder, policy="mru")
    read(one, 0)
    read(one, 1)
    with one.bring(name_of(2)) or pytest.fail("there was room"):
        read(two, 3)
        assert here(folder) == [0, 2, 3]


def test_prefetching_gives_way_and_reading_does_not(store: Path, folder: Path) -> None:
    one, two = cache_on(store, folder, shards=1), cache_on(store, folder, shards=1)
    with one.bring(name_of(0)) or pytest.fail("there was room"):
        assert two.bring(name_of(1)) is None
        assert read(two, 1) == content_of(1)
    assert here(folder) == [1]


def test_shards_that_are_expected_are_there_when_they_are_read(store: Path, folder: Path) -> None:
    cache = cache_on(store, folder, shards=4)
    Ahead(cache).expect([name_of(n) for n in (3, 3, 5, 6)])
    until(lambda: cache.facts().fetched == 2)
    assert here(folder) == [3, 5]  # no more than `prefetch`
    read(cache, 5)
    read(cache, 5)
    facts = cache.facts()
    assert (facts.hits, facts.misses, facts.prefetch_hits) == (2, 0, 1)


def test_an_expectation_that_is_over_holds_nothing(store: Path, folder: Path) -> None:
    cache = cache_on(store, folder, shards=4)
    ahead = Ahead(cache)
    ahead.expect([name_of(0)])
    until(lambda: cache.facts().fetched == 1)
    ahead.expect([])
    until(lambda: not any(map(is_held, folder.glob("*/*.shard"))))


def test_an_expectation_that_fails_is_reported_by_the_read(erring: str, folder: Path) -> None:
    cache = cache_on(erring, folder, shards=4)
    ahead = Ahead(cache)
    Erring.lies = 2
    ahead.expect([name_of(0)])
    until(lambda: Erring.requests == 2)
    assert read(cache, 0) == content_of(0)
    Erring.lies = 2
    with pytest.raises(Damaged):
        read(cache, 1)


READER = """
import hashlib, os, random, sys
from windlass.corpus.remote.cache import ShardCache
from windlass.corpus.remote.published import Origin
from windlass.store.manifest import load_manifest
from windlass.store.store_dir import StoreDir
store, folder, policy, size, seed = sys.argv[1:]
files, chance = load_manifest(StoreDir(store)).files, random.Random(int(seed))
cache = ShardCache(Origin(store, folder, policy, 3 * int(size), 2), "a" * 64, files)
printed = False
while True:
    name = chance.choice(sorted(files))
    with cache.opened(name) as file:
        assert hashlib.sha256(os.pread(file.fileno(), int(size), 0)).hexdigest() == files[name].sha256
    if not printed:
        printed = True
        print(name, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["arc", "mru"])
def test_processes_killed_at_any_moment_leave_a_cache_that_holds_its_limit(
    store: Path, folder: Path, policy: str
) -> None:
    chance = random.Random(7)
    readers = [reader(store, folder, policy, seed) for seed in range(8)]
    for process in readers:
        assert process.stdout is not None
        process.stdout.readline()  # it reads
    while readers:
        for _ in range(20):
            assert len(here(folder)) <= 3
            time.sleep(chance.random() / 200)
        process = readers.pop()
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    cache = cache_on(store, folder, policy=policy)
    assert [read(cache, n) for n in range(8)] == [content_of(n) for n in range(8)]
    assert len(here(folder)) <= 3
    assert list(folder.glob("*/*.part")) == []


def reader(store: Path, folder: Path, policy: str, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", READER, str(store), str(folder), policy, str(SIZE), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
