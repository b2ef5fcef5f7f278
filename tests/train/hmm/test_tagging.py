"""Which hidden state is behind each token."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from windlass.cli.main import main
from windlass.corpus.build import build_corpus
from windlass.corpus.corpus_dir import load_corpus
from windlass.models.hmm.weights import HmmWeights, write_model
from windlass.spec.errors import BadInput
from windlass.spec.job import Clean, Corpus, TokenizerSpec
from windlass.spec.shape import HmmShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.train.hmm.tagging import tag_text

VOWELS = "aeiou"


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of letters with two states that it takes in turn: 0 emits vowels, 1 the others."""
    folder = tmp_path_factory.mktemp("spelling")
    (folder / "text.txt").write_text("banana rudiment\n" * 40)
    job = Corpus(
        sources=(str(folder / "text.txt"),),
        clean=Clean(duplicates="keep", max_repetition=1.0),
        tokenizer=TokenizerSpec(kind="char"),
    )
    tokenizer = load_corpus(build_corpus(job, folder / "home")).tokenizer
    is_vowel_V = np.array([tokenizer.token(i) in tuple(VOWELS) for i in range(tokenizer.vocabulary)])
    emission_KV = np.stack([np.where(is_vowel_V, 0.9, 0.02), np.where(is_vowel_V, 0.02, 0.9)])
    weights = HmmWeights(
        np.array([0.3, 0.7]),
        np.array([[0.2, 0.8], [0.7, 0.3]]),
        emission_KV / emission_KV.sum(1, keepdims=True),
    )
    writer = DirectoryWriter(StoreDir(folder / "model"))
    shape = HmmShape(vocabulary=tokenizer.vocabulary, context=16, states=2)
    write_model(writer, shape, weights.astype(np.float32), {"eos_token_id": tokenizer.end_id})
    writer.write("tokenizer.json", tokenizer.json)
    writer.commit({"kind": "model", "family": "hmm"})
    return folder / "model"


def test_each_letter_gets_the_state_that_emits_it(spelling: Path) -> None:
    told = tag_text(spelling, "banana", 0)
    assert [token["text"] for token in told["tokens"]] == list("banana")
    assert [token["state"] for token in told["tokens"]] == [1, 0, 1, 0, 1, 0]
    assert told["path_logprob"] < 0
    assert told["loss"] > 0
    assert "states" not in told


def test_states_are_reported_by_what_they_emit(spelling: Path) -> None:
    vowels, others = tag_text(spelling, None, 3)["states"]
    assert {token["text"] for token in vowels["tokens"]} <= set(VOWELS)
    assert not {token["text"] for token in others["tokens"]} & set(VOWELS)
    assert vowels["share"] == pytest.approx(0.7 / 1.5, rel=1e-4)  # where 0.8 leave and 0.7 come
    assert [state["state"] for state in tag_text(spelling, "bbb", 3)["states"]] == [1]


def test_an_empty_text_and_another_family_are_refused(spelling: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the text is empty"):
        tag_text(spelling, "", 0)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BadInput, match="'llama', which has no hidden states"):
        tag_text(tmp_path, "x", 0)


def test_tagging_loads_no_torch(spelling: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from windlass.train.hmm.tagging import tag_text
tag_text(Path({str(spelling)!r}), "banana", 2)
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_asking_for_nothing_says_what_to_ask_for(spelling: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", str(spelling)]) == 2
    assert "--text" in capsys.readouterr().err
    assert main(["tag", str(spelling), "--states", "--top", "0"]) == 2


@pytest.mark.slow
def test_the_verb_prints_tokens_with_their_states(
    spelling: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path)]
    assert main(["tag", str(spelling), "--text", "banana", "--states", "--json", *home]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [token["state"] for token in told["tokens"]] == [1, 0, 1, 0, 1, 0]
    assert len(told["states"]) == 2
    assert main(["tag", str(spelling), "--text", "an", *home]) == 0
    assert capsys.readouterr().out.split() == ["token", "state", "'a'", "0", "'n'", "1"]
    assert main(["tag", str(spelling), "--text", "", *home]) == 2
