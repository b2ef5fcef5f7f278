"""Counting on Beam's embedded runner gives the model that counting here gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from windlass.train.ngram.blocks import Packing
from windlass.train.ngram.build import Build
from windlass.train.ngram.settings import CountSettings
from windlass.train.ngram.source import ArraySource

pytest.importorskip("apache_beam", reason="Apache Beam is not installed")


@pytest.mark.slow
def test_beam_gives_the_same_bytes_as_the_pool(tmp_path: Path) -> None:
    from windlass.store.beam import BeamRunner
    from windlass.train.ngram.on_beam import BeamCountExecutor

    random = np.random.default_rng(5)
    tokens = np.where(random.random(5000) < 0.05, 0, random.geometric(0.05, 5000) % 3000).astype(np.uint16)
    tokens[-1] = 0
    settings = CountSettings(Packing(4, 3000, 0), (0, 0, 1, 1), 1 << 30, 1, block=700)
    executor = BeamCountExecutor(BeamRunner(), str(tmp_path / "scratch"))
    there = Build(ArraySource(tokens), settings, tmp_path / "there", executor=executor).run()
    here = Build(ArraySource(tokens), settings, tmp_path / "here").run()
    assert there is not None
    assert here is not None
    assert there.lengths == here.lengths
    for name in here.lengths:
        one, other = (tmp_path / side / "estimates" / name for side in ("here", "there"))
        assert one.read_bytes() == other.read_bytes()
    assert not (tmp_path / "scratch").exists()
