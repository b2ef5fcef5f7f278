"""Whatever a sender writes into a request, it gets one end, and its neighbours get their answer unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.serve.engine.step import Answer, Engine
from windlass.spec.protocol.wire import Embed, EmbeddingVectors, Failed, Generate, Tokens, frame, to_engine

WHOLE = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
REAL = st.floats(allow_nan=True, allow_infinity=True, width=64) | st.sampled_from(
    [0.0, -0.0, 1e-320, 1e308, -1e308]
)
NEAR = st.integers(-1, 102)
TOKENS = st.lists(NEAR, max_size=6) | st.just([5] * 500) | st.lists(WHOLE, max_size=4)

WILD: dict[str, st.SearchStrategy[Any]] = {
    "tokens": TOKENS,
    "max_tokens": WHOLE,
    "temperature": REAL,
    "top_k": WHOLE,
    "top_p": REAL,
    "min_p": REAL,
    "presence_penalty": REAL,
    "frequency_penalty": REAL,
    "repetition_penalty": REAL,
    "seed": WHOLE,
    "logprobs": WHOLE,
    "stop_tokens": TOKENS,
    "logit_bias": st.dictionaries(NEAR | WHOLE, REAL, max_size=4),
    "score_prompt": st.booleans(),
    "resumed_tokens": WHOLE,
    "adapter": st.text(max_size=5),
    "tenant": st.text(max_size=5),
    "priority": WHOLE,
}
GOOD = {"id": "wild", "tokens": [1, 2, 3], "max_tokens": 6}
FIELDS = st.lists(st.sampled_from(sorted(WILD)), max_size=3, unique=True)
CHANGES = FIELDS.flatmap(lambda names: st.fixed_dictionaries({name: WILD[name] for name in names}))
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

pytestmark = pytest.mark.slow

Drain = Callable[[Engine], dict[str, list[Answer]]]


def ends(said: list[Answer]) -> list[Answer]:
    return [
        m for m in said if isinstance(m, Failed | EmbeddingVectors) or (isinstance(m, Tokens) and m.finish)
    ]


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW)
@given(change=CHANGES)
def test_a_wild_request_ends_once_and_affects_no_other(
    engine: Callable[..., Engine], drain: Drain, change: dict[str, Any]
) -> None:
    one = engine()
    neighbour = Generate("neighbour", [4, 5, 6], 8, temperature=0.0)
    one.add("alone", neighbour)
    alone = drain(one)["neighbour"]
    wild = to_engine.decode(frame(Generate(**GOOD | change))[4:])
    one.add("them", neighbour)
    one.add("me", wild)
    said = drain(one)
    assert said["neighbour"] == alone
    assert ends(said["wild"]) == said["wild"][-1:]


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(inputs=st.lists(TOKENS, max_size=5), priority=WHOLE)
def test_wild_inputs_are_embedded_or_refused(
    engine: Callable[..., Engine], drain: Drain, inputs: list[list[int]], priority: int
) -> None:
    one = engine()
    one.add("me", Embed("wild", inputs, priority=priority))
    (last,) = drain(one)["wild"]
    assert isinstance(last, Failed | EmbeddingVectors)
    if isinstance(last, EmbeddingVectors):
        assert len(last.vectors) == len(inputs)
