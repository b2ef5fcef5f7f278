"""KenLM estimates the same: always by numbers that it gave once, and by asking it where it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from windlass.lab.torch import ngram_bench
from windlass.lab.torch.kenlm_peer import VARIABLE, find_kenlm
from windlass.models.ngram.arpa import write_arpa
from windlass.models.ngram.sentences import Sentences
from windlass.spec.errors import NotFound

GOLDEN = Path(__file__).with_name("kenlm.json")
"""Renewed by WINDLASS_KENLM=DIRECTORY python tests/train/ngram/test_kenlm.py (see tools/kenlm)."""
SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"


def lines(seed: int, count: int) -> list[str]:
    """Text with frequent and rare words, repeated phrases, and short lines."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = random.geometric(0.03, random.integers(1, 14))
        rows.append(" ".join(f"w{w}" if w % 5 else f"w{w} of w{w // 5}" for w in words.tolist()))
    return rows


@pytest.mark.parametrize("prune", [(), (0, 0, 1)])
def test_sentences_score_as_lmplz_scored_them(tmp_path: Path, prune: tuple[int, ...]) -> None:
    expected = json.loads(GOLDEN.read_text())["pruned" if prune else "whole"]
    model, words = ngram_bench.build_words(lines(1, 800), 4, prune, tmp_path)
    log10 = Sentences(model, words, 1).score(lines(2, 20)) / np.log(10)
    np.testing.assert_allclose(log10, expected["log10"], atol=1e-4)
    # KenLM counts <s> and </s> as two words, we as one token.
    assert (model.shape.ngrams[0] + 1, *model.shape.ngrams[1:]) == tuple(expected["ngrams"])


def test_without_kenlm_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(NotFound, match="is not installed") as refused:
        find_kenlm()
    assert "tools/kenlm DIRECTORY" in str(refused.value)
    (tmp_path / "site").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(NotFound):
        find_kenlm()


needs_kenlm = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} names no KenLM (tools/kenlm)"
)


@needs_kenlm
@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="../shared/data is not here")
@pytest.mark.parametrize(("order", "prune"), ngram_bench.CASES)
def test_held_out_text_has_the_perplexity_that_kenlm_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int, prune: tuple[int, ...]
) -> None:
    monkeypatch.setattr(ngram_bench, "SHARED", SHARED)
    for text in ngram_bench.texts():
        figures = ngram_bench.compared(find_kenlm(), text, order, prune, tmp_path / text.name)
        name = f"{text.name}_{order}{'_pruned' if prune else ''}"
        assert figures[f"{name}_perplexity_ratio"] == pytest.approx(1, abs=1e-3)
        assert figures[f"{name}_sentence_difference"] < 1e-4


@needs_kenlm
@pytest.mark.slow
def test_our_arpa_files_score_the_same_in_kenlm(tmp_path: Path) -> None:
    model, words = ngram_bench.build_words(lines(1, 800), 5, (0, 0, 1), tmp_path)
    write_arpa(tmp_path / "ours.arpa", model.levels, words, model.end, 1)
    other = find_kenlm().load(tmp_path / "ours.arpa")
    held_out = lines(2, 20)
    log10 = Sentences(model, words, 1).score(held_out) / np.log(10)
    np.testing.assert_allclose(log10, [other.score(line) for line in held_out], atol=1e-4)


def _renew() -> None:
    import tempfile

    peer, golden = find_kenlm(), {}
    for name, prune in (("whole", ()), ("pruned", (0, 0, 1))):
        with tempfile.TemporaryDirectory() as folder:
            text = Path(folder) / "text"
            text.write_text("\n".join(lines(1, 800)) + "\n")
            arpa = peer.estimate(text, 4, prune, Path(folder) / "arpa").arpa
            model, head = peer.load(arpa), arpa.read_text().splitlines()[1:5]
            scores = [round(sum(s[0] for s in model.full_scores(line)), 6) for line in lines(2, 20)]
            golden[name] = {"ngrams": [int(row.split("=")[1]) for row in head], "log10": scores}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    _renew()
