"""The native engine next to transformers: every decoder family, read from a directory of transformers."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch

from windlass.lab.torch.families_proof import difference, reference
from windlass.lab.torch.family_cases import CASES, FamilyCase
from windlass.models.weights import load_weights
from windlass.serve.engine.native import missing_feature
from windlass.serve.engine.native_runner import NativeRunner
from windlass.serve.engine.runner import Span
from windlass.spec.shape import DecoderShape

LENGTH = 60
"""Beyond every window and the original context of stretched positions."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_scores_are_those_of_transformers(case: FamilyCase, shared: ctypes.CDLL, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = reference(case)
    theirs.save_pretrained(tmp_path / "theirs")
    weights = load_weights(tmp_path / "theirs")
    assert isinstance(weights.shape, DecoderShape)
    assert missing_feature(weights.shape) is None
    tokens = np.random.default_rng(1).integers(3, case.arguments["vocab_size"], LENGTH).tolist()
    runner = NativeRunner(shared, weights, blocks=4, threads=1)
    table = np.arange(4, dtype=np.int32)[None]
    got = runner.run([Span(0, 0, tokens, outs=LENGTH)], table).logits_BV
    with torch.no_grad():
        wanted = theirs(torch.tensor([tokens])).logits[0]
    assert difference(torch.from_numpy(got.copy()), wanted) < 1e-5
