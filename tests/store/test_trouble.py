"""Stores that answer slowly, with errors or not at all, and doors that stay shut."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates
from windlass.spec.errors import BadInput, StoreFailed
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.mirror import Mirror
from windlass.store.store_dir import StoreDir, opened

pytestmark = pytest.mark.slow

PARTS_BYTES = 60 << 20
"""More than s3fs sends at once: it goes up as a multipart upload."""


@pytest.fixture
def there(s3_url: str) -> StoreDir:
    return StoreDir(f"{s3_url}/{secrets.token_hex(4)}")


def test_what_goes_up_in_parts_is_whole_and_read_by_ranges(there: StoreDir) -> None:
    block = secrets.token_bytes(1 << 20)
    with there.writing("large") as file:
        for _ in range(PARTS_BYTES >> 20):
            file.write(block)
    assert there.sizes() == {"large": PARTS_BYTES}
    with opened(f"{there.url}/large") as file:
        for offset in (0, 12345, (1 << 20) - 3, PARTS_BYTES - 100):
            file.seek(offset)
            at = offset % len(block)
            assert file.read(200) == (block + block)[at : at + 200][: PARTS_BYTES - offset]


def test_an_upload_in_parts_that_is_given_up_leaves_nothing(there: StoreDir) -> None:
    with contextlib.suppress(RuntimeError), there.writing("large") as file:
        for _ in range(PARTS_BYTES >> 20):
            file.write(bytes(1 << 20))
        raise RuntimeError("the writer failed")
    assert there.names() == []


def test_a_listing_shows_what_was_just_written_and_not_what_was_removed(there: StoreDir) -> None:
    for number in range(20):
        there.write(f"a/{number:02d}", b".")
        assert len(there.names("a")) == number + 1
    for number in range(20):
        there.remove(f"a/{number:02d}")
        assert len(there.names("a")) == 19 - number


def test_listings_continue_past_a_thousand(there: StoreDir) -> None:
    names = [f"n/{number:04d}" for number in range(1005)]

    def write(part: list[str]) -> None:
        for name in part:
            there.write(name, b"")

    threads = [threading.Thread(target=write, args=(names[start::8],)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert there.names("n") == names


@pytest.mark.parametrize(
    "faults",
    [
        FaultRates(late=1.0, late_s=0.1),
        FaultRates(error=0.3),
        FaultRates(cut=0.3),
        FaultRates(error=0.2, late=0.3),
    ],
)
def test_passing_trouble_is_outlived(s3_network: FaultProxy, there: StoreDir, faults: FaultRates) -> None:
    s3_network.faults = faults
    for number in range(5):
        there.write(f"x{number}", b"bytes" * 1000)
        assert there.read(f"x{number}") == b"bytes" * 1000
    assert len(there.names()) == 5


def test_lasting_trouble_is_a_sentence_and_leaves_nothing(
    s3_url: str, s3_network: FaultProxy, there: StoreDir, tmp_path: Path
) -> None:
    one = tmp_path / "one"
    writer = DirectoryWriter(StoreDir(one))
    writer.write("a", b"these bytes")
    writer.commit()
    s3_network.faults = FaultRates(error=1.0, statuses=(503,))
    with pytest.raises(StoreFailed, match=f"{s3_url}/"):
        Mirror(there).push(one)
    s3_network.faults = FaultRates()
    assert Mirror(there).names() == []
    Mirror(there).push(one)
    Mirror(there).fetch("one", tmp_path / "back")
    verify(StoreDir(tmp_path / "back"))


@pytest.mark.parametrize("wrong", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
@pytest.mark.parametrize("ask", [lambda p: p.write("x", b"."), lambda p: p.read("x"), lambda p: p.names()])
def test_wrong_credentials_are_a_sentence_without_any_secret(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, wrong: str, ask: Callable[[StoreDir], object]
) -> None:
    import s3fs

    monkeypatch.setenv(wrong, "hushhush-of-the-environment")
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        with pytest.raises(StoreFailed) as told:
            ask(StoreDir(f"{s3_url}/x"))
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
    assert "credentials" in str(told.value)
    assert "hushhush" not in str(told.value)


def test_wrong_credentials_of_oss_are_a_sentence_without_any_secret(
    oss_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSS_ACCESS_KEY_SECRET", "hushhush-of-the-environment")
    from windlass.store.on_oss import Oss

    Oss.clear_instance_cache()
    try:
        with pytest.raises(StoreFailed) as told:
            StoreDir(f"{oss_url}/x").write("x", b".")
    finally:
        Oss.clear_instance_cache()
    assert "credentials" in str(told.value)
    assert "hushhush" not in str(told.value)


def test_another_user_of_hdfs_is_refused_with_a_sentence(webhdfs_url: str) -> None:
    other = webhdfs_url.replace("windlass@", "somebody@")
    with pytest.raises(StoreFailed, match="no permission"):
        StoreDir(other).write("x", b".")


def test_hdfs_without_its_native_library_is_a_sentence() -> None:
    with pytest.raises((BadInput, StoreFailed), match="hdfs://nowhere") as told:
        StoreDir("hdfs://nowhere:8020/user").names()
    assert "webhdfs" in str(told.value)
