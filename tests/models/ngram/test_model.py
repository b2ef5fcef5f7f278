from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.models.ngram.files import load, promised, save_model
from windlass.models.ngram.model import NgramModel
from windlass.models.ngram.native import ours
from windlass.models.ngram.sentences import Sentences
from windlass.models.ngram.trie import Level
from windlass.models.recurrent_state import Statistical, load_statistical
from windlass.spec.errors import BadInput, Damaged
from windlass.spec.shape import NgramShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir

END, VOCABULARY, ORDER = 2, 40, 4


@pytest.fixture(scope="module")
def levels() -> list[Level]:
    """A tree with every node that some random text has, and random numbers on it."""
    random = np.random.default_rng(3)
    text = np.concatenate([[END], np.minimum(random.geometric(0.15, 3000) - 1, VOCABULARY - 1)])
    rows = [np.arange(VOCABULARY)[:, None]]
    for order in range(2, ORDER + 1):
        windows = np.lib.stride_tricks.sliding_window_view(text, order)
        inside = ~(windows[:, 1:-1] == END).any(axis=1)
        rows.append(np.unique(windows[inside], axis=0))
    found: list[Level] = []
    index = [{tuple(row): i for i, row in enumerate(table.tolist())} for table in rows]
    for k, table in enumerate(rows):
        logs = [-random.random(len(table)).astype(np.float32) * 4 for _ in range(2)]
        begins = None
        if k + 1 < ORDER:
            parents = [index[k][tuple(row[:-1])] for row in rows[k + 1].tolist()]
            begins = np.searchsorted(parents, np.arange(len(table) + 1)).astype(np.uint32)
        found.append(
            Level(
                probabilities=logs[0],
                words=table[:, -1].astype(np.uint16) if k else None,
                suffixes=np.array([index[k - 1][tuple(r[1:])] for r in table.tolist()], np.uint32)
                if k
                else None,
                backoffs=logs[1] if k + 1 < ORDER else None,
                begins=begins,
            )
        )
    return found


def model_of(levels: list[Level], *, native: bool, threads: int = 0) -> NgramModel:
    shape = NgramShape(vocabulary=VOCABULARY, context=64, order=ORDER)
    return NgramModel(shape, levels, END, native=native, threads=threads)


IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=IDS)
def test_the_library_and_numpy_give_the_same_bits(levels: list[Level], text: list[int]) -> None:
    if ours() is None:
        pytest.skip("the native library is not built here")
    tokens = np.array(text)
    native, plain = model_of(levels, native=True), model_of(levels, native=False)
    states = native.read(native.first(), tokens)
    assert (native.scores(states) == plain.scores(states)).all()
    rows = np.stack([tokens, tokens[::-1]])
    assert (native.logs(rows[:, :-1], rows[:, 1:]) == plain.logs(rows[:, :-1], rows[:, 1:])).all()
    assert (native.logs(rows, rows[:, ::-1]) == plain.logs(rows, rows[:, ::-1])).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=IDS)
def test_scores_after_each_token_are_the_logprobs_of_all_targets(
    levels: list[Level], text: list[int]
) -> None:
    model = model_of(levels, native=True)
    tokens = np.array(text)
    states = model.read(model.first(), tokens)
    all_targets = np.arange(VOCABULARY)
    inputs = np.repeat(tokens[None], VOCABULARY, axis=0)
    targets = np.concatenate([inputs[:, 1:], all_targets[:, None]], axis=1)
    assert (model.logs(inputs, targets)[:, -1] == model.scores(states)[-1]).all()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(IDS, min_size=1, max_size=4))
def test_steps_give_what_reading_gives_while_other_readers_step(
    levels: list[Level], texts: list[list[int]]
) -> None:
    model = model_of(levels, native=True)
    longest = max(map(len, texts))
    tokens = np.array([(text * longest)[:longest] for text in texts])
    states = np.repeat(model.first()[None], len(texts), axis=0)
    read = np.stack([model.read(model.first(), row) for row in tokens])
    for place in range(longest):
        states = model.step(states, tokens[:, place])
        assert (states == read[:, place]).all()
    alone = np.concatenate([model.scores(state[None]) for state in states])
    assert (model.scores(states) == alone).all()


def test_nothing_before_the_end_of_a_document_is_remembered(levels: list[Level]) -> None:
    model = model_of(levels, native=True)
    assert model.read(model.first(), np.array([7, 8, END, 9]))[-1].tolist() == [-1, END, 9]
    assert model.step(np.array([[5, 6, 7]], np.int32), np.array([END])).tolist() == [[-1, -1, END]]


def test_any_number_of_threads_gives_the_same_bits(levels: list[Level]) -> None:
    rows = np.random.default_rng(1).integers(0, VOCABULARY, (7, 33))
    one, four = (model_of(levels, native=True, threads=n).logs(rows[:, :-1], rows[:, 1:]) for n in (1, 4))
    assert (one == four).all()


def test_ids_outside_the_vocabulary_are_refused(levels: list[Level]) -> None:
    model = model_of(levels, native=True)
    with pytest.raises(BadInput, match="there are 40"):
        model.logprobs(np.array([[1, VOCABULARY]]), np.array([[1, 2]]))
    with pytest.raises(BadInput, match="from -1"):
        model.step(model.first()[None], np.array([-1]))


def test_words_of_text_score_as_their_ids_do(levels: list[Level]) -> None:
    model = model_of(levels, native=True)
    words = [f"w{i}" for i in range(VOCABULARY)]
    texts = ["w3 w4\u3000w3 \n w5", "", "w9 nobody", "\u00a0w1 "]
    ids = [[3, 4, 3, 5], [], [9, 1], [1]]
    expected = [float(model.logprobs(np.array([[END, *i]]), np.array([[*i, END]])).sum()) for i in ids]
    for native in (True, False):
        sentences = Sentences(model_of(levels, native=native), words, unknown=1)
        logs, lengths = sentences.measure(texts)
        np.testing.assert_allclose(logs, expected, rtol=1e-6)
        assert lengths.tolist() == [5, 1, 3, 2]


@pytest.fixture
def saved(levels: list[Level], tmp_path: Path) -> Path:
    writer = DirectoryWriter(StoreDir(tmp_path / "model"))
    shape = NgramShape(
        vocabulary=VOCABULARY, context=64, order=ORDER, ngrams=tuple(len(level) for level in levels)
    )
    save_model(writer, shape, promised(levels), special_tokens={"eos_token_id": END})
    writer.commit()
    return tmp_path / "model"


def test_a_saved_model_is_mapped_and_scores_as_before(levels: list[Level], saved: Path) -> None:
    model: Statistical = load_statistical(saved)
    rows = np.random.default_rng(2).integers(0, VOCABULARY, (3, 20))
    before = model_of(levels, native=True)
    assert (model.logprobs(rows[:, :-1], rows[:, 1:]) == before.logprobs(rows[:, :-1], rows[:, 1:])).all()
    assert model.shape == before.shape.model_copy(update={"ngrams": tuple(map(len, levels))})
    probabilities = load(saved).levels[-1].probabilities
    assert not probabilities.flags.owndata
    assert probabilities.ctypes.data % 4 == 0


def test_a_flipped_bit_is_found(saved: Path) -> None:
    path = saved / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged, match="differ from those written"):
        load(saved)


def test_links_that_lead_out_of_the_tree_are_refused(levels: list[Level], tmp_path: Path) -> None:
    broken = [*levels]
    suffixes = np.array(broken[2].suffixes)
    suffixes[5] = 1 << 30
    broken[2] = Level(
        broken[2].probabilities, broken[2].words, suffixes, broken[2].backoffs, broken[2].begins
    )
    writer = DirectoryWriter(StoreDir(tmp_path))
    shape = NgramShape(vocabulary=VOCABULARY, context=64, order=ORDER)
    save_model(writer, shape, promised(broken), special_tokens={"eos_token_id": END})
    with pytest.raises(Damaged, match="links of order 3 lead out of the tree"):
        load(tmp_path)
