from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.models.ngram.arpa import read_arpa, spell, write_arpa
from windlass.models.ngram.model import NgramModel
from windlass.models.ngram.sentences import Sentences
from windlass.spec.errors import BadInput
from windlass.spec.shape import NgramShape

TINY = """\
some toolkit wrote this
\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-1.5\t<unk>
-99\t<s>\t-0.25
-1\t</s>
-0.5\ta\t-0.125
-0.75\tb\t-0.0625

\\2-grams:
-0.25\t<s> a\t-0.5
-0.375\ta b
-0.5\tb a\t-0.03125
-0.625\tb </s>

\\3-grams:
-0.125\t<s> a b
-0.1875\ta b </s>

\\end\\
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.arpa"
    path.write_text(TINY)
    return path


def model_of(path: Path, *, native: bool = True) -> tuple[NgramModel, Sentences]:
    arpa = read_arpa(path)
    shape = NgramShape(vocabulary=len(arpa.words), context=8, order=len(arpa.levels))
    model = NgramModel(shape, arpa.levels, arpa.end, native=native)
    return model, Sentences(model, arpa.words, arpa.unknown)


@pytest.mark.parametrize("native", [True, False])
def test_a_sentence_is_scored_by_the_longest_ngrams_and_backoffs(tiny: Path, native: bool) -> None:
    _, sentences = model_of(tiny, native=native)
    log10 = sentences.score(["a b", "b", "a a", "c", ""]) / np.log(10)
    np.testing.assert_allclose(
        log10,
        [
            -0.25 - 0.125 - 0.1875,  # <s> a, <s> a b, a b </s>
            -0.25 - 0.75 - 0.625,  # back off <s>, b; then b </s>
            -0.25
            + (-0.5 - 0.125 - 0.5)
            + (-0.125 - 1.0),  # <s> a; back off <s> a, a, then a; back off a, </s>
            (-0.25 - 1.5) - 1.0,  # back off <s>, <unk>; </s>
            -0.25 - 1.0,
        ],
        rtol=1e-6,
    )


def test_what_is_written_read_and_written_again_is_the_same(tiny: Path, tmp_path: Path) -> None:
    arpa = read_arpa(tiny)
    first, second = tmp_path / "1.arpa", tmp_path / "2.arpa.gz"
    write_arpa(first, arpa.levels, arpa.words, arpa.end, arpa.unknown)
    again = read_arpa(first)
    write_arpa(second, again.levels, again.words, again.end, again.unknown)
    assert gzip.decompress(second.read_bytes()) == first.read_bytes()
    assert "-0.1875\ta b </s>\n" in first.read_text()


FINITE = st.floats(-8, 0, width=32)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocabulary=st.integers(2, 5),
    grams=st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=4), max_size=12),
    data=st.data(),
)
def test_any_tree_comes_back_as_it_was(
    tmp_path: Path, vocabulary: int, grams: list[list[int]], data: st.DataObject
) -> None:
    words = ["</s>", "<unk>", *"abc"[: vocabulary - 2]] if vocabulary > 2 else ["</s>", "<unk>"]
    rows = {tuple(g) for g in grams if all(0 < w < vocabulary for w in g[1:-1]) and max(g) < vocabulary}
    lines = [f"{data.draw(FINITE)}\t{w}\t{data.draw(FINITE)}" for w in [*words, "<s>"]]
    text = f"\\data\\\nngram 1={len(lines)}\n"
    sections = "\n\\1-grams:\n" + "\n".join(lines) + "\n"
    for order in range(2, 5):
        some = sorted(row for row in rows if len(row) == order)
        text += f"ngram {order}={len(some)}\n"
        sections += f"\n\\{order}-grams:\n"
        for row in some:
            spelled = [("<s>" if w == 0 and i == 0 else words[w]) for i, w in enumerate(row)]
            sections += f"{data.draw(FINITE)}\t{' '.join(spelled)}\t{data.draw(FINITE)}\n"
    given_, first, second = tmp_path / "0.arpa", tmp_path / "1.arpa", tmp_path / "2.arpa"
    given_.write_text(text + sections + "\n\\end\\\n")
    arpa = read_arpa(given_)
    write_arpa(first, arpa.levels, arpa.words, arpa.end, arpa.unknown)
    again = read_arpa(first)
    write_arpa(second, again.levels, again.words, again.end, again.unknown)
    assert second.read_bytes() == first.read_bytes()


def test_ngrams_that_a_toolkit_left_out_are_put_in_without_a_change_of_scores(tmp_path: Path) -> None:
    path = tmp_path / "pruned.arpa"
    path.write_text(TINY.replace("ngram 2=4", "ngram 2=3").replace("-0.375\ta b\n", ""))
    _, pruned = model_of(path)
    # b after <s> a is still known; after a alone it backs off: -0.125 - 0.75.
    log10 = pruned.score(["a b", "b a b"]) / np.log(10)
    np.testing.assert_allclose(log10[0], -0.25 - 0.125 - 0.1875, rtol=1e-6)
    np.testing.assert_allclose(log10[1], (-0.25 - 0.75) - 0.5 + (-0.03125 - 0.125 - 0.75) - 0.1875, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (TINY.replace("-0.5\tb a", "x\tb a"), "is not a number, 2 words"),
        (TINY.replace("<s> a b", "a <s> b"), "'<s>' in 'a <s> b' may not be there"),
        (TINY.replace("b a\t", "b z\t"), "'z' in 'b z' is not among the words"),
        (TINY.replace("\\end\\", ""), "the file ends here"),
        (TINY.replace("ngram 2=4", "ngram 3=4"), "is not 'ngram 2=COUNT'"),
        (TINY.replace("ngram 2=4", "ngram 2=3"), "where '\\\\\\\\3-grams:' should be"),
        (TINY.replace("</s>", "end"), "there is no </s>"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_line(tmp_path: Path, wrong: str, message: str) -> None:
    path = tmp_path / "wrong.arpa"
    path.write_text(wrong)
    with pytest.raises(BadInput, match=message.replace("\\\\\\\\", "\\\\")) as refused:
        read_arpa(path)
    assert f"{path}:" in refused.value.message


def test_white_space_in_tokens_is_spelled_by_its_code() -> None:
    assert spell("\n") == "<|U+000A|>"
    assert spell("of the") == "of<|U+0020|>the"
    assert spell("Ġthe") == "Ġthe"
