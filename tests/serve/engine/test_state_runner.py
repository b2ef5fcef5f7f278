"""Models whose past is a state: what the engine says of them is what they say themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from windlass.serve.engine.adapters import Adapter
from windlass.serve.engine.runner import BLOCK_TOKENS, Span, block_bytes
from windlass.serve.engine.state_runner import MIN_LOGPROB, StateRunner
from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.spec.errors import BadInput
from windlass.spec.protocol.wire import Embed, EmbeddingVectors, Failed, Generate, PromptScores
from windlass.spec.shape import HmmShape, NgramShape

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28, 84]
QUIET = EngineSettings(drafts=False)

Drain = Callable[[Engine], dict[str, list[Answer]]]
Engines = Callable[..., Engine]


@pytest.fixture
def runner(runner: Callable[..., StateRunner]) -> StateRunner:
    return runner("fading")


def test_scores_of_a_prompt_are_those_of_the_model(runner: StateRunner, drain: Drain) -> None:
    engine = Engine(runner, QUIET)
    engine.add("me", Generate("a", PROMPT, 1, temperature=0.0, score_prompt=True))
    scores = next(one for one in drain(engine)["a"] if isinstance(one, PromptScores))
    wanted = runner._model.logprobs(np.array([PROMPT[:-1]]), np.array([PROMPT[1:]]))[0]
    assert scores.logprobs == pytest.approx(wanted.tolist(), abs=1e-5)


def test_a_sequence_continues_from_the_state_in_its_blocks(runner: StateRunner) -> None:
    tables = np.arange(8, dtype=np.int32).reshape(2, 4)
    whole = runner.run([Span(0, 0, PROMPT)], tables).logits_BV.copy()
    for cut in (1, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1):
        runner.run([Span(1, 0, PROMPT[:cut], outs=0)], tables)
        assert (runner.run([Span(1, cut, PROMPT[cut:])], tables).logits_BV == whole).all()


def test_a_wrong_guess_leaves_no_trace(runner: StateRunner) -> None:
    tables = np.arange(4, dtype=np.int32).reshape(1, 4)
    runner.run([Span(0, 0, PROMPT[:5])], tables)
    plain = runner.run([Span(0, 5, PROMPT[5:7])], tables).logits_BV.copy()
    runner.run([Span(0, 5, [PROMPT[5], 1, 2, 3], outs=4)], tables)
    assert (runner.run([Span(0, 6, PROMPT[6:7])], tables).logits_BV == plain).all()


def test_what_cannot_be_has_a_number_all_the_same(
    runner: StateRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = runner._model.scores

    def without_the_first(states: np.ndarray) -> np.ndarray:
        found = scores(states)
        found[:, 0] = -np.inf
        return found

    monkeypatch.setattr(runner._model, "scores", without_the_first)
    computed = runner.run([Span(0, 0, PROMPT)], np.zeros((1, 4), np.int32))
    assert computed.logits_BV[0, 0] == MIN_LOGPROB
    assert np.isfinite(computed.logits_BV).all()


def test_an_ngram_model_has_no_vectors(
    runner: StateRunner, drain: Drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "shape", NgramShape(vocabulary=101, context=200, order=3))
    engine = Engine(runner, QUIET)
    engine.add("me", Embed("a", [PROMPT]))
    (answer,) = drain(engine)["a"]
    assert isinstance(answer, Failed)
    assert answer.code == "not_embeddable"
    assert "ngram" in answer.message


def test_a_vector_is_the_mean_of_those_of_the_states(runner: StateRunner, drain: Drain) -> None:
    engine = Engine(runner, QUIET)
    engine.add("me", Embed("a", [PROMPT]))
    (answer,) = drain(engine)["a"]
    assert isinstance(answer, EmbeddingVectors)
    mean = runner._model.read(runner._model.first(), np.array(PROMPT)).mean(axis=0, dtype=np.float64)
    assert answer.vectors[0] == pytest.approx((mean / np.linalg.norm(mean)).tolist(), abs=1e-6)


def test_adapters_are_refused(runner: StateRunner) -> None:
    with pytest.raises(BadInput, match="LoRA"):
        runner.take_adapter(Adapter("small", 4, 1.0, {}))


def test_a_block_is_as_large_as_the_states_in_it(runner: StateRunner) -> None:
    assert block_bytes(runner.shape, half=True) * runner.blocks == runner._states_NPS.nbytes
    ngram = NgramShape(vocabulary=101, context=200, order=5)
    assert block_bytes(ngram, half=False) == 4 * 4 * BLOCK_TOKENS
    assert block_bytes(HmmShape(vocabulary=9, context=8, states=3), half=True) == 3 * 4 * BLOCK_TOKENS
