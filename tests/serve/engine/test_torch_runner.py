"""The runner by torch: the same blocks, the same answers as the model computes at one go.

Legend: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from windlass.models.build import build
from windlass.models.language import LanguageModel
from windlass.serve.engine.runner import Span
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.serve.engine.torch_runner import TorchRunner
from windlass.spec.protocol.wire import Generate
from windlass.spec.shape import DecoderShape

FAMILIES = ("llama", "tied", "wide heads", "gpt2")
TOKENS = np.random.default_rng(5).integers(0, 101, 120).tolist()
TABLES = np.random.default_rng(6).permutation(64)[:52].astype(np.int32).reshape(4, 13)

Models = Callable[[str], LanguageModel]
Drain = Callable[[Engine], dict[str, list[Answer]]]


@torch.inference_mode()
def wanted(model: LanguageModel) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    x_1TD = model(torch.tensor([TOKENS]))
    return model.logits(x_1TD)[0].numpy(), x_1TD[0].numpy()


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_read_in_chunks_with_others_get_the_scores_of_the_whole(name: str, model: Models) -> None:
    runner = TorchRunner(model(name), blocks=64)
    logits_TV, hidden_TD = wanted(model(name))
    runner.run([Span(2, 0, TOKENS[:50], outs=0), Span(0, 0, TOKENS[:7])], TABLES)
    spans = [Span(0, 7, TOKENS[7:9], outs=2), Span(2, 50, TOKENS[50:90], outs=3), Span(1, 0, TOKENS[:1])]
    got = runner.run(spans, TABLES, hidden=True)
    np.testing.assert_allclose(got.logits_BV, logits_TV[[7, 8, 87, 88, 89, 0]], atol=1e-4)
    assert got.hidden_TD is not None
    np.testing.assert_allclose(got.hidden_TD, hidden_TD[[7, 8, *range(50, 90), 0]], atol=1e-4)


def test_a_step_may_want_no_scores(model: Models) -> None:
    computed = TorchRunner(model("llama"), blocks=64).run([Span(0, 0, TOKENS[:5], outs=0)], TABLES)
    assert computed.logits_BV.shape == (0, 101)
    assert computed.hidden_TD is None


def test_an_engine_answers_by_torch_as_by_the_native_runner(
    model: Models, engine: Callable[..., Engine], drain: Drain
) -> None:
    by_torch = Engine(TorchRunner(model("llama"), blocks=64), EngineSettings(slots=3, prompt_tokens=20))
    native = engine("llama")
    for number in range(5):
        request = Generate(str(number), TOKENS[: 10 * number + 1], 20, temperature=0.0)
        by_torch.add("me", request)
        native.add("me", request)
    assert drain(by_torch) == drain(native)


def test_an_engine_starts_on_a_context_that_is_no_multiple_of_a_block() -> None:
    shape = DecoderShape(family="gpt2", vocabulary=11, context=19, layers=1, width=8, heads=1, ffn_width=8)
    one = Engine(TorchRunner(build(shape, seed=1), blocks=4), EngineSettings(drafts=True))
    assert one.is_idle
