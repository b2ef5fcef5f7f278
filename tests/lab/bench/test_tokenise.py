from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.lab.bench.tokenise import measure
from windlass.spec.job import Corpus


@pytest.mark.slow
def test_the_bench_measures_both_and_leaves_only_the_corpus(tmp_path: Path) -> None:
    source = str(Path(os.__file__).parent / "json")
    result = measure(tmp_path, repeats=2, corpus=Corpus(sources=(source,)))
    figures = result["figures"]
    assert figures["vs_raw_tokenizers"] > 0
    assert figures["mb_per_s"] / figures["raw_mb_per_s"] == pytest.approx(figures["vs_raw_tokenizers"])
    assert len(result["seconds"]["ours"]) == len(result["seconds"]["raw"]) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["corpora"]
