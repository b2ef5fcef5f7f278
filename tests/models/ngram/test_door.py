"""ARPA files go in and out of the registry, by the command line and the process behind it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from windlass.cli.main import main
from windlass.models.ngram.__main__ import give, take
from windlass.models.ngram.arpa import read_arpa
from windlass.models.ngram.files import load
from windlass.spec.errors import BadInput, InUse

ARPA = """\
\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.5\t<unk>\t0
-99\t<s>\t-0.25
-1\t</s>\t0
-0.5\tup\t-0.125
-0.75\trope\t-0.0625

\\2-grams:
-0.25\t<s> up
-0.375\tup rope
-0.625\trope </s>

\\end\\
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.arpa"
    path.write_text(ARPA)
    return path


def test_an_imported_model_scores_by_the_tokens_of_its_own_tokenizer(file: Path, tmp_path: Path) -> None:
    import tokenizers

    facts = take(file, tmp_path / "model")
    assert facts["shape"]["ngrams"] == [4, 3]
    model = load(tmp_path / "model")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    ids = [model.end, *tokenizer.encode("up rope pump").ids, model.end]
    assert tokenizer.decode(ids) == "up rope"
    log10 = model.logprobs(np.array([ids[:-1]]), np.array([ids[1:]]))[0] / np.log(10)
    np.testing.assert_allclose(log10, [-0.25, -0.375, -0.0625 - 1.5, -1], rtol=1e-6)


def test_what_is_given_is_what_was_taken(file: Path, tmp_path: Path) -> None:
    take(file, tmp_path / "model")
    give(tmp_path / "model", tmp_path / "out.arpa.gz")
    one, other = read_arpa(file, end_last=True), read_arpa(tmp_path / "out.arpa.gz")
    assert one.words == other.words
    for level, same in zip(one.levels, other.levels, strict=True):
        assert (level.probabilities == same.probabilities).all()
    with pytest.raises(InUse):
        give(tmp_path / "model", tmp_path / "out.arpa.gz")


def test_only_ngram_models_become_arpa_files(tmp_path: Path) -> None:
    config = {"model_type": "windlass-hmm", "vocabulary": 5, "context": 8, "states": 2, "eos_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput, match="a hmm model, not an n-gram model"):
        give(tmp_path, tmp_path / "out.arpa")


@pytest.mark.slow
def test_the_command_line_registers_and_writes_arpa_files(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home")]
    assert main(["models", "import", str(file), *home, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "words"
    assert main(["models", "export", "words", str(tmp_path / "out.arpa"), *home]) == 0
    assert "-0.375\tup rope\n" in (tmp_path / "out.arpa").read_text()
    assert main(["models", "import", str(tmp_path / "none.arpa"), *home]) == 2
    file.write_text(ARPA.replace("-0.375", "x"))
    assert main(["models", "import", str(file), *home]) == 2
    assert f"{file}:14: " in capsys.readouterr().err
