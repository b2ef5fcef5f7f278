"""Learning vectors from a real corpus: bounded, repeatable, and never lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windlass.corpus.corpus_dir import BuiltCorpus, load_corpus
from windlass.models.word2vec import Word2VecOptions
from windlass.models.word2vec_files import TokenVectors, first_embedding, load_vectors, save_vectors
from windlass.spec.errors import BadInput, Damaged
from windlass.train.word2vec import learner
from windlass.train.word2vec.learner import PASSES, Word2VecLearner, Word2VecPlan


@pytest.fixture
def corpus(corpus_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltCorpus:
    monkeypatch.setattr(learner, "CHUNK_TOKENS", 8000)
    monkeypatch.setattr(learner, "BLOCK_TOKENS", 1000)
    return load_corpus(corpus_path)


def begin(corpus: BuiltCorpus, folder: Path, **more: Any) -> Word2VecLearner:
    size = len(corpus.tokenizer.special_ids) + 200
    plan = {"vocabulary": size, "width": 12, "end_token": corpus.tokenizer.end_id, "epochs": 2, "seed": 3}
    return Word2VecLearner(
        corpus.train,
        Word2VecPlan(**plan | more, options=Word2VecOptions()),
        folder,
        digest=corpus.digest,
        threads=1,
    )


def finished(one: Word2VecLearner, folder: Path) -> TokenVectors:
    while not one.finished:
        one.advance()
    return one.finish(folder / "word2vec")


def test_counts_are_those_of_the_text_and_its_loss_falls(corpus: BuiltCorpus, tmp_path: Path) -> None:
    vectors = finished(begin(corpus, tmp_path, epochs=3), tmp_path)
    known = Counter(corpus.train.read(0, corpus.train.tokens).tolist())
    assert {token: count for token, count in enumerate(vectors.counts_V.tolist()) if count} == known
    losses = vectors.metadata["losses"]
    assert len(losses) == 3
    assert losses[2] < losses[0]


def test_the_result_is_read_as_it_was_written_and_checkpoints_are_gone(
    corpus: BuiltCorpus, tmp_path: Path
) -> None:
    vectors = finished(begin(corpus, tmp_path), tmp_path)
    found = load_vectors(tmp_path / "word2vec")
    assert found is not None
    np.testing.assert_array_equal(found.inputs_VD, vectors.inputs_VD)
    np.testing.assert_array_equal(found.outputs_VD, vectors.outputs_VD)
    assert found.metadata["plan"]["width"] == 12
    assert not (tmp_path / PASSES).exists()


@pytest.mark.parametrize("chunks", [1, 3, 99])
def test_stopped_anywhere_and_gone_on_it_ends_with_the_same_bits(
    corpus: BuiltCorpus, tmp_path: Path, chunks: int
) -> None:
    whole = finished(begin(corpus, tmp_path / "whole"), tmp_path / "whole")
    broken = begin(corpus, tmp_path / "broken")
    for _ in range(chunks):
        if not broken.finished:
            broken.advance()
    broken.save()
    again = begin(corpus, tmp_path / "broken")
    assert (again.epoch, again.position) == (broken.epoch, broken.position)
    vectors = finished(again, tmp_path / "broken")
    np.testing.assert_array_equal(vectors.inputs_VD, whole.inputs_VD)
    assert vectors.metadata["losses"] == whole.metadata["losses"]


def test_one_lost_in_mid_pass_continues_from_the_pass_before(corpus: BuiltCorpus, tmp_path: Path) -> None:
    lost = begin(corpus, tmp_path)
    while lost.epoch == 0:
        lost.advance()
    lost.advance()  # of the second pass; nothing is saved of it
    again = begin(corpus, tmp_path)
    assert (again.epoch, again.position) == (1, 0)


def test_half_a_checkpoint_is_none(corpus: BuiltCorpus, tmp_path: Path) -> None:
    one = begin(corpus, tmp_path)
    one.advance()
    one.save()
    next((tmp_path / PASSES).iterdir()).joinpath("manifest.json").unlink()
    assert (begin(corpus, tmp_path).epoch, begin(corpus, tmp_path).position) == (0, 0)


def test_other_settings_do_not_continue_from_a_checkpoint(corpus: BuiltCorpus, tmp_path: Path) -> None:
    one = begin(corpus, tmp_path)
    one.advance()
    one.save()
    with pytest.raises(BadInput, match="with other settings"):
        begin(corpus, tmp_path, width=16)


def test_a_flipped_byte_is_found(corpus: BuiltCorpus, tmp_path: Path) -> None:
    finished(begin(corpus, tmp_path), tmp_path)
    file = tmp_path / "word2vec" / "vectors.safetensors"
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(Damaged):
        load_vectors(tmp_path / "word2vec")


def test_a_first_embedding_is_centred_and_as_large_as_requested(tmp_path: Path) -> None:
    drawn = np.random.default_rng(1).normal(3.0, 0.7, (50, 8)).astype(np.float32)
    save_vectors(tmp_path, TokenVectors(drawn, drawn, np.ones(50, np.int64), {}))
    vectors = load_vectors(tmp_path)
    assert vectors is not None
    embedding = first_embedding(vectors, 0.02)
    np.testing.assert_allclose(embedding.mean(axis=0), 0, atol=1e-7)
    assert embedding.std() == pytest.approx(0.02, rel=1e-5)
