"""Which pairs are whose, and how much of what several learn at the same time counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.batches import share_of
from windlass.models.word2vec import (
    Sampler,
    Word2VecOptions,
    changes,
    draw,
    first_matrices,
    learn,
    moved,
    some_groups,
)
from windlass.train.server.hmm.hmm_shard import states_of
from windlass.train.server.word2vec.pair_batches import BATCHES, SIZE, UNITS, PairBatches
from windlass.train.server.word2vec.word2vec_shard import rows_of
from windlass.train.server.word2vec.word2vec_worker import MANY, damp
from windlass.train.word2vec import learner


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "CHUNK_TOKENS", 700)
    monkeypatch.setattr(learner, "BLOCK_TOKENS", 200)


def test_blocks_cover_the_text_and_none_crosses_two_chunks(small: None) -> None:
    blocks = learner.blocks_of(1500)
    assert [token for block in blocks for token in block] == list(range(1500))
    assert all(block.start // 700 == (block.stop - 1) // 700 for block in blocks)


def test_a_step_is_found_again_from_where_it_stands(small: None) -> None:
    grid = PairBatches(1500, epochs=2)
    for step in range(0, grid.steps, BATCHES):
        epoch, position = grid.position_at(step)
        if position == 1500:
            epoch, position = epoch + 1, 0
        assert grid.step_at(epoch, position) == step
    assert grid.position_at(grid.steps) == (1, 1500)


@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 300))
def test_the_parts_of_a_batch_are_its_groups_in_order(parts: int, batch: int, count: int) -> None:
    grid = PairBatches(12345, epochs=30)
    places = [grid.place(share_of(batch * SIZE, SIZE, part, parts)) for part in range(parts)]
    groups = [range(count * p.first // UNITS, count * p.until // UNITS) for p in places]
    first = (batch % BATCHES) * SIZE
    wanted = range(count * first // UNITS, count * (first + SIZE) // UNITS)
    assert [g for one in groups for g in one] == list(wanted)
    assert len({(p.epoch, p.start) for p in places}) == 1


@given(st.integers(1, 50), st.integers(1, 50))
def test_servers_divide_rows_and_states_without_a_gap(count: int, servers: int) -> None:
    for divided in (rows_of(count, servers), states_of(count, servers)):
        assert [row for own in divided for row in own] == list(range(count))
        assert max(map(len, divided)) - min(map(len, divided)) <= 1


def test_pieces_of_a_block_learn_in_turn_what_the_block_learns() -> None:
    tokens = np.random.default_rng(1).integers(0, 40, 600).astype(np.int32)
    sampler = Sampler(np.bincount(tokens, minlength=40), 0, Word2VecOptions())
    whole, pieces = first_matrices(40, 12, 1), first_matrices(40, 12, 1)
    groups = draw(sampler, 5, tokens, 0)
    learn(whole, groups, 0.05)
    inputs, outputs = pieces.inputs_VS[:, :12].copy(), pieces.outputs_VS[:, :12].copy()
    count = len(groups.targets_GN)
    for first, until in ((0, count // 3), (count // 3, count - 1), (count - 1, count)):
        some = some_groups(groups, first, until)
        inputs[some.inputs], outputs[some.outputs], _ = moved(
            some, inputs[some.inputs], outputs[some.outputs], 0.05
        )
    np.testing.assert_array_equal(inputs, whole.inputs_VS[:, :12])
    np.testing.assert_array_equal(outputs, whole.outputs_VS[:, :12])


def test_changes_of_frequent_rows_become_a_mean_and_those_of_rare_ones_stay() -> None:
    tokens = np.zeros(30_000, np.int32)
    tokens[::100] = np.arange(300) % 50 + 1
    sampler = Sampler(np.bincount(tokens, minlength=52), 51, Word2VecOptions(subsample=0))
    groups = draw(sampler, 5, tokens, 0)
    matrices = first_matrices(52, 8, 1)
    rows = matrices.inputs_VS[groups.inputs, :8], matrices.outputs_VS[groups.outputs, :8]
    *found, _ = changes(groups, *rows, 0.05)  # type: ignore[misc]
    before = [one.copy() for one in found]
    damp(groups, found, others=2)
    np.testing.assert_allclose(found[0][0], before[0][0] / 3, rtol=1e-6)
    visits = int((groups.contexts_P == groups.inputs[1]).sum())
    assert visits < MANY
    np.testing.assert_allclose(found[0][1], before[0][1] / (1 + 2 * 3 * visits / MANY), rtol=1e-5)
