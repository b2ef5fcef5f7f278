from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.models.ngram.trie import ngrams_of
from windlass.spec.errors import BadInput
from windlass.train.ngram import build as build_module
from windlass.train.ngram.blocks import Packing
from windlass.train.ngram.build import Build
from windlass.train.ngram.settings import CountSettings
from windlass.train.ngram.source import ArraySource

VOCABULARY = 6
DOCUMENTS = st.lists(st.lists(st.integers(1, VOCABULARY - 1), max_size=12), min_size=1, max_size=12)
PRUNES = st.sampled_from([(), (0, 0, 1), (0, 1), (0, 1, 2)])
lawful = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@lawful
@given(documents=DOCUMENTS, order=st.integers(1, 5), prune=PRUNES)
def test_probabilities_are_those_of_the_definition(
    make: Any, naive: Any, documents: list[list[int]], order: int, prune: tuple[int, ...]
) -> None:
    prune = prune[:order]
    model = make(documents, VOCABULARY, order, prune)
    expected = naive(documents, VOCABULARY, order, prune)
    text = np.array([0, *(t for d in documents for t in (*d, 0))])
    got = model.logprobs(text[None, :-1], text[None, 1:])[0]
    wanted = [expected.score(text[: i + 2].tolist()) for i in range(len(text) - 1)]
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@lawful
@given(
    documents=DOCUMENTS, order=st.integers(1, 5), prune=PRUNES, past=st.lists(st.integers(0, 5), max_size=6)
)
def test_the_next_token_is_certain_to_be_one_of_the_vocabulary(
    make: Any, documents: list[list[int]], order: int, prune: tuple[int, ...], past: list[int]
) -> None:
    model = make(documents, VOCABULARY, order, prune[:order])
    states = np.concatenate([model.first()[None], model.read(model.first(), np.array(past, np.int32))])
    np.testing.assert_allclose(np.exp(model.scores(states).astype(np.float64)).sum(axis=1), 1.0, atol=2e-5)


@lawful
@given(documents=DOCUMENTS, order=st.integers(1, 5))
def test_what_is_counted_is_what_a_dictionary_counts(
    make: Any, naive: Any, documents: list[list[int]], order: int
) -> None:
    model = make(documents, VOCABULARY, order)
    expected = naive(documents, VOCABULARY, order).seen
    for k in range(2, order + 1):
        assert [tuple(row) for row in ngrams_of(model.levels, k).tolist()] == sorted(expected[k])


@lawful
@given(documents=DOCUMENTS, order=st.integers(1, 7), block=st.integers(1, 40))
def test_blocks_of_any_size_give_the_same_bytes(
    make: Any, digest_of: Callable[[Any], str], documents: list[list[int]], order: int, block: int
) -> None:
    assert digest_of(make(documents, VOCABULARY, order, block=block)) == digest_of(
        make(documents, VOCABULARY, order)
    )


@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_bytes(make: Any, digest_of: Callable[[Any], str]) -> None:
    documents = _documents(400)
    alone = make(documents, 50, 4, (0, 0, 1))
    assert digest_of(make(documents, 50, 4, (0, 0, 1), block=777, processes=3)) == digest_of(alone)


def test_runs_that_are_too_many_to_read_at_once_are_merged_in_groups(
    make: Any, digest_of: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = _documents(60)
    whole = digest_of(make(documents, 50, 3))
    monkeypatch.setattr(build_module, "MIN_CHUNK", 1 << 21)
    assert digest_of(make(documents, 50, 3, block=10)) == whole


def test_numpy_makes_the_same_bytes_as_the_library(
    make: Any, digest_of: Callable[[Any], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.train.ngram import blocks, links

    if blocks.ours() is None:
        pytest.skip("the native library is not built here")
    documents = _documents(100)
    whole = digest_of(make(documents, 50, 4, (0, 0, 1), block=333))
    monkeypatch.setattr(blocks, "ours", lambda: None)
    monkeypatch.setattr(links, "ours", lambda: None)
    assert digest_of(make(documents, 50, 4, (0, 0, 1), block=333)) == whole


def test_a_build_that_was_stopped_continues_with_the_blocks_it_has(tmp_path: Path) -> None:
    source = ArraySource(np.array([t for d in _documents(50) for t in (*d, 0)], np.uint16))
    settings = CountSettings(Packing(3, 50, 0), (0, 0, 0), 1 << 30, 1, block=100)
    counted: list[int] = []
    stopping = Build(source, settings, tmp_path, lambda p: counted.append(p.done), lambda: len(counted) >= 3)
    assert stopping.run() is None
    debris = tmp_path / "block-000007"
    debris.mkdir()
    (debris / "keys.bin").write_bytes(b"half of it")  # its writer died here
    again: list[tuple[str, int]] = []
    made = Build(source, settings, tmp_path, lambda p: again.append((p.stage, p.done))).run()
    assert again[0] == ("count", 300), "three blocks were there"
    fresh = Build(source, settings, tmp_path / "fresh").run()
    assert made is not None
    assert fresh is not None
    for name in fresh.lengths:
        assert (tmp_path / "estimates" / name).read_bytes() == (
            tmp_path / "fresh" / "estimates" / name
        ).read_bytes()


def test_a_committed_stage_is_not_done_again(tmp_path: Path) -> None:
    source = ArraySource(np.array([t for d in _documents(50) for t in (*d, 0)], np.uint16))
    settings = CountSettings(Packing(3, 50, 0), (0, 0, 0), 1 << 30, 1)
    stages: list[int] = []
    assert Build(source, settings, tmp_path, stopped=lambda: len(stages) == 2).run(stages.append) is None
    told: list[str] = []
    Build(source, settings, tmp_path, lambda p: told.append(p.stage)).run()
    assert set(told) == {"link", "estimate"}


def test_debris_of_another_text_is_cleared_away(tmp_path: Path) -> None:
    settings = CountSettings(Packing(2, 50, 0), (0, 0), 1 << 30, 1)
    first = ArraySource(np.array([5, 6, 7, 0], np.uint16))
    other = ArraySource(np.array([8, 9, 0], np.uint16))
    Build(first, settings, tmp_path).run()
    made = Build(other, settings, tmp_path).run()
    assert made is not None
    assert made.ngrams(2) == (50, 3)


def test_text_that_is_too_small_for_discounts_is_reported(make: Any, tmp_path: Path) -> None:
    source = ArraySource(np.array([5, 6, 7, 0], np.uint16))
    made = Build(source, CountSettings(Packing(2, 50, 0), (0, 0), 1 << 30, 1), tmp_path).run()
    assert made is not None
    assert made.notes[0] == (
        "order 1: the text is too small or too regular for its own discounts (none has the count 2 or 3);"
        " subtracting 0.5, 1, 1.5 from counts of 1, 2 and more"
    )


def test_memory_in_which_nothing_can_be_counted_is_refused() -> None:
    with pytest.raises(BadInput, match="too little to count in"):
        CountSettings(Packing(3, 50, 0), (0, 0, 0), 1 << 20, 1)


def test_text_without_an_end_is_refused(tmp_path: Path) -> None:
    settings = CountSettings(Packing(3, 50, 0), (0, 0, 0), 1 << 30, 1)
    with pytest.raises(BadInput, match="end with the end token"):
        Build(ArraySource(np.array([5, 6], np.uint16)), settings, tmp_path).run()


def _documents(count: int) -> list[list[int]]:
    """Text in which few tokens are frequent and many are rare, as in any language."""
    random = np.random.default_rng(7)
    return [(1 + random.geometric(0.1, random.integers(0, 30)) % 49).tolist() for _ in range(count)]
