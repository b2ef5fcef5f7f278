"""A corpus that is built here, kept on a store, and read elsewhere."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.batches import read_batch, read_windows, sample_count, windows_at
from windlass.corpus.build import build_corpus, find_built, is_whole
from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.corpus.remote.published import publish
from windlass.corpus.shards import shards_of
from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates
from windlass.spec.errors import BadInput, Damaged, NotFound, StoreFailed
from windlass.spec.job import CacheSpec, Clean, Corpus, TokenizerSpec
from windlass.spec.protocol.progress import Progress, silent

SHARD_TOKENS = 500
CONTEXT = 16


@pytest.fixture
def text(tmp_path: Path, english: str, chinese: str) -> Path:
    path = tmp_path / "text" / "a.txt"
    path.parent.mkdir()
    path.write_text("".join(f"{i}: {english}\n{chinese}\n\n" for i in range(40)), "utf-8")
    return path


def corpus_spec(text: Path, store: Path | str, **cache: Any) -> Corpus:
    return Corpus(
        sources=(str(text),),
        document="paragraph",
        clean=Clean(duplicates="keep"),
        tokenizer=TokenizerSpec(kind="char"),
        store=str(store),
        shard_tokens=SHARD_TOKENS,
        cache=CacheSpec(**{"bytes": 3 * SHARD_TOKENS * 2, **cache}),
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def built_at(text: Path, store: Path | str, home: Path, **cache: Any) -> BuiltCorpus:
    return load_corpus(build_corpus(corpus_spec(text, store, **cache), home))


@pytest.fixture
def pair(text: Path, store: Path, tmp_path: Path) -> tuple[BuiltCorpus, BuiltCorpus]:
    """The corpus where it was built, and the same on a machine that has only the store."""
    return built_at(text, store, tmp_path / "builder"), built_at(text, store, tmp_path / "reader")


def test_a_store_that_has_the_corpus_spares_the_build(text: Path, store: Path, tmp_path: Path) -> None:
    stages: list[Progress] = []
    build_corpus(corpus_spec(text, store), tmp_path / "builder", stages.append)
    assert {"tokenise", "publish"} <= {progress.stage for progress in stages}
    stages.clear()
    path = build_corpus(corpus_spec(text, store), tmp_path / "reader", stages.append)
    assert stages == []
    assert is_whole(path)
    assert list(path.rglob("*.bin")) == []


def test_an_adopted_corpus_reads_like_the_one_that_was_built(pair: tuple[BuiltCorpus, BuiltCorpus]) -> None:
    here, there = pair
    assert here.digest == there.digest
    assert there.cache is not None
    for name in ("train", "validation"):
        one, two = here.part(name), there.part(name)
        np.testing.assert_array_equal(one.read(0, len(one)), two.read(0, len(two)))
        assert (one.documents, one.text_bytes) == (two.documents, two.text_bytes)
        assert here.document_id(name, 0) == there.document_id(name, 0)
        np.testing.assert_array_equal(one.document(0), two.document(0))
        assert len(two.read(3, 3)) == 0


def test_shuffled_batches_come_through_the_cache_the_same(pair: tuple[BuiltCorpus, BuiltCorpus]) -> None:
    here, there = pair
    for step in range(20):
        positions = range(step * 4, step * 4 + 4)
        batches = [read_batch(corpus.train, positions, CONTEXT, seed=1) for corpus in pair]
        np.testing.assert_array_equal(*batches)
    facts = there.facts()
    assert facts is not None
    assert here.facts() is None
    assert facts.hits > 0
    assert facts.evictions > 0


def test_what_the_next_steps_read_is_fetched_ahead(pair: tuple[BuiltCorpus, BuiltCorpus]) -> None:
    part = pair[1].train
    windows = windows_at(range(2), sample_count(len(part), CONTEXT), seed=1)[:1]
    part.expect(windows, CONTEXT)
    for _ in range(1000):
        if (pair[1].facts() or pytest.fail("it has a cache")).fetched:
            break
        time.sleep(0.01)
    read_windows(part, windows, CONTEXT)
    facts = pair[1].facts()
    assert facts is not None
    assert facts.prefetch_hits >= 1


def test_expecting_something_of_a_local_corpus_does_nothing(pair: tuple[BuiltCorpus, BuiltCorpus]) -> None:
    pair[0].train.expect([0, 1, 2], CONTEXT)
    assert pair[0].cache is None


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 30), st.data())
def test_the_shards_of_windows_are_those_that_hold_their_tokens(
    sizes: list[int], context: int, data: st.DataObject
) -> None:
    ends = np.cumsum(sizes).tolist()
    count = (ends[-1] - 1) // context
    windows = data.draw(st.lists(st.integers(0, count - 1))) if count > 0 else []
    shard_of = np.repeat(np.arange(len(sizes)), sizes)
    touched = [shard_of[w * context : w * context + context + 1].tolist() for w in windows]
    assert shards_of(windows, context, ends) == list(dict.fromkeys(n for row in touched for n in row))


def test_where_a_corpus_is_kept_does_not_change_its_name(text: Path, tmp_path: Path) -> None:
    names = {
        find_built(corpus_spec(text, store, policy=policy), tmp_path).name
        for store in ("/one", "s3://two")
        for policy in ("lru", "arc")
    }
    assert len(names) == 1


def test_the_last_job_decides_how_the_cache_is_kept(text: Path, store: Path, tmp_path: Path) -> None:
    built_at(text, store, tmp_path / "builder")
    folder = tmp_path / "scratch"
    for policy in ("lru", "arc"):
        built = built_at(text, store, tmp_path / "reader", policy=policy, folder=str(folder))
        assert built.cache is not None
        assert (built.cache.origin.policy, built.cache.origin.folder) == (policy, str(folder))


def test_a_publication_that_was_cut_off_is_made_again(text: Path, store: Path, tmp_path: Path) -> None:
    path = build_corpus(corpus_spec(text, store), tmp_path / "builder")
    (store / path.name / "manifest.json").unlink()
    (store / path.name / "train" / "tokens-00001.bin").write_bytes(b"half")
    build_corpus(corpus_spec(text, store), tmp_path / "builder")
    there = built_at(text, store, tmp_path / "reader")
    assert there.cache is not None
    assert there.train.read(0, len(there.train)).shape == (len(there.train),)


def test_a_publication_is_left_alone_when_it_is_whole(text: Path, store: Path, tmp_path: Path) -> None:
    path = build_corpus(corpus_spec(text, store), tmp_path / "builder")
    seen: list[Progress] = []
    publish(path, f"{store}/{path.name}", seen.append)
    assert seen == []


def test_a_cache_too_small_for_one_shard_is_refused_before_training(
    text: Path, store: Path, tmp_path: Path
) -> None:
    build_corpus(corpus_spec(text, store), tmp_path / "builder")
    with pytest.raises(BadInput, match=r"bytes: 10 B is less than one shard of .*\(1000 B\)"):
        build_corpus(corpus_spec(text, store, bytes=10), tmp_path / "reader")
    assert list((tmp_path / "reader" / "corpora").glob("*/manifest.json")) == []


def test_a_store_that_lost_the_corpus_is_named_by_the_read(
    pair: tuple[BuiltCorpus, BuiltCorpus], store: Path
) -> None:
    next(store.glob("*/train/tokens-00000.bin")).unlink()
    with pytest.raises(Damaged, match=r"tokens-00000.bin: listed in manifest.json but missing"):
        pair[1].train.read(0, 10)


def test_a_thorough_check_reads_the_store(pair: tuple[BuiltCorpus, BuiltCorpus], store: Path) -> None:
    load_corpus(pair[1].path, thorough=True)
    shard = next(store.glob("*/train/tokens-00001.bin"))
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(Damaged, match=r"tokens-00001.bin: the bytes differ"):
        load_corpus(pair[1].path, thorough=True)


def test_another_store_without_the_corpus_is_refused(text: Path, store: Path, tmp_path: Path) -> None:
    build_corpus(corpus_spec(text, store), tmp_path / "builder")
    build_corpus(corpus_spec(text, store), tmp_path / "reader")
    with pytest.raises(NotFound, match=r"no such corpus; .* has its tokens at"):
        build_corpus(corpus_spec(text, tmp_path / "elsewhere"), tmp_path / "reader")


@pytest.mark.parametrize(("key", "value"), [("store", "corpora"), ("cache", {"folder": "scratch"})])
def test_a_relative_place_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        Corpus.model_validate({key: value})


@pytest.mark.slow
def test_a_corpus_goes_through_a_real_object_store(text: Path, s3_url: str, tmp_path: Path) -> None:
    store = f"{s3_url}/{secrets.token_hex(4)}"
    here = built_at(text, store, tmp_path / "builder")
    there = built_at(text, store, tmp_path / "reader")
    windows = range(sample_count(len(here.train), CONTEXT))
    there.train.expect(list(windows)[-20:], CONTEXT)
    np.testing.assert_array_equal(
        read_windows(here.train, windows, CONTEXT), read_windows(there.train, windows, CONTEXT)
    )
    facts = there.facts()
    assert facts is not None
    assert facts.fetched_bytes >= len(here.train) * 2
    assert (
        sum(path.stat().st_size for path in tmp_path.glob("reader/cache/*/*.shard")) <= 3 * SHARD_TOKENS * 2
    )


@pytest.mark.slow
def test_a_corpus_is_read_through_a_bad_network(
    text: Path, s3_url: str, s3_network: FaultProxy, tmp_path: Path
) -> None:
    store = f"{s3_url}/{secrets.token_hex(4)}"
    s3_network.faults = FaultRates(late=0.2, late_s=0.05, error=0.1, cut=0.1)
    here = built_at(text, store, tmp_path / "builder")
    there = built_at(text, store, tmp_path / "reader")
    for name in ("train", "validation"):
        one, two = here.part(name), there.part(name)
        np.testing.assert_array_equal(one.read(0, len(one)), two.read(0, len(two)))
    assert s3_network.counts.keys() >= {"error", "cut", "late"}


@pytest.mark.slow
def test_a_store_that_does_not_answer_is_named(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }
    for name, value in nobody.items():
        monkeypatch.setenv(name, value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreFailed, match=r"s3://nowhere/.*: cannot be reached"):
        build_corpus(corpus_spec(text, "s3://nowhere"), tmp_path / "home", silent)
    s3fs.S3FileSystem.clear_instance_cache()  # or the next test would ask nobody too
