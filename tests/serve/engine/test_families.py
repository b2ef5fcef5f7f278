"""The statistical families in the engine: real models, small, made here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from windlass.models.recurrent_state import Statistical
from windlass.serve.engine.build import _model_bytes
from windlass.serve.engine.compression.perplexity import summed_loss
from windlass.serve.engine.load import LoadOptions, load_engine, open_runner
from windlass.serve.engine.runner import block_bytes
from windlass.serve.engine.state_runner import StateRunner
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import Embed, EmbeddingVectors, Failed

FAMILIES = ("ngram", "hmm", "mlp")
VOCABULARY = 101
QUIET = EngineSettings(drafts=False)

Drain = Callable[[Engine], dict[str, list[Answer]]]
Stored = Callable[[str], Path]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_served_costs_what_is_measured(
    family: str, stored: Stored, statistical: Callable[[str], Statistical]
) -> None:
    windows = np.random.default_rng(1).integers(0, VOCABULARY, (3, 50))
    runner = open_runner(stored(family), LoadOptions(QUIET, threads=1))
    measured = -statistical(family).logprobs(windows[:, :-1], windows[:, 1:]).sum()
    assert summed_loss(runner, windows) == pytest.approx(measured, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_is_what_a_shelf_counts(family: str, stored: Stored) -> None:
    runner = open_runner(stored(family), LoadOptions(QUIET, threads=1))
    assert isinstance(runner, StateRunner)
    assert block_bytes(runner.shape, half=True) * runner.blocks == runner._states_NPS.nbytes
    weights = stored(family) / "model.safetensors"
    counted = _model_bytes(stored(family), runner.shape, "float32")
    assert counted == pytest.approx(weights.stat().st_size, rel=0.2)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_become_vectors_where_a_family_has_them(family: str, stored: Stored, drain: Drain) -> None:
    engine = load_engine(stored(family), LoadOptions(QUIET, threads=1))
    assert isinstance(engine, Engine)
    engine.add("me", Embed("a", [[3, 4, 5], [3, 4, 6], [90, 91]]))
    (answer,) = drain(engine)["a"]
    if family == "ngram":
        assert isinstance(answer, Failed)
        return
    assert isinstance(answer, EmbeddingVectors)
    assert {len(vector) for vector in answer.vectors} == {engine.shape.width}
    near, far = (float(np.dot(answer.vectors[0], answer.vectors[n])) for n in (1, 2))
    assert near > far


@pytest.mark.parametrize("family", FAMILIES)
def test_other_ways_to_compute_are_refused(family: str, stored: Stored) -> None:
    for options in (LoadOptions(runner="torch"), LoadOptions(precision="int8")):
        with pytest.raises(BadInput, match=family):
            open_runner(stored(family), options)
    with pytest.raises(BadInput, match="LoRA"):
        load_engine(stored(family), LoadOptions(), {"poet": Path("nowhere")})
