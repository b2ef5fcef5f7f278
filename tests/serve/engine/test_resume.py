"""Another engine goes on where one stopped, given the prompt and the tokens that were sent."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.serve.engine.step import Answer, Engine, EngineSettings
from windlass.spec.protocol.wire import Generate, Tokens

MOST = 24
PROMPT = [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]
REQUESTS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 5, "top_p": 0.95},
    "penalised": {"temperature": 0.9, "seed": 6, "frequency_penalty": 0.7, "presence_penalty": 0.2},
    "not repeating": {"temperature": 0.9, "seed": 7, "repetition_penalty": 1.4, "logprobs": 2},
    "biased": {"temperature": 0.7, "seed": 8, "min_p": 0.05, "logit_bias": {4: 3.0}, "logprobs": 0},
    "stopped": {"temperature": 1.0, "seed": 9, "stop_tokens": [*range(0, 101, 11)]},
}
OTHER = EngineSettings(slots=3, prompt_tokens=7, policy="lfu", max_idle_blocks=4)

Engines = Callable[..., Engine]
Drain = Callable[[Engine], dict[str, list[Answer]]]


def answered(engine: Engine, request: Generate, drain: Drain) -> list[Answer]:
    engine.add("me", request)
    return drain(engine)[request.id]


def rest_of(request: Generate, sent: list[int]) -> Generate:
    """Return what a gateway asks another engine for."""
    return msgspec.structs.replace(
        request,
        tokens=request.tokens + sent,
        max_tokens=request.max_tokens - len(sent),
        resumed_tokens=len(sent),
    )


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kind", REQUESTS)
def test_another_engine_continues_from_every_token(
    kind: str, precision: str, engine: Engines, drain: Drain
) -> None:
    request = Generate("it", PROMPT, MOST, **REQUESTS[kind])  # type: ignore[arg-type]
    whole = answered(engine(precision=precision), request, drain)
    sent = [token for message in whole if isinstance(message, Tokens) for token in message.tokens]
    assert len(sent) > 1
    another = engine("llama", OTHER, precision=precision, drafts="forced", blocks=16)
    for cut in range(1, len(sent)):
        assert answered(another, rest_of(request, sent[:cut]), drain) == whole[cut:]


@settings(max_examples=20, deadline=None)
@given(
    prompt=st.lists(st.integers(0, 100), min_size=1, max_size=60),
    seed=st.integers(0, 2**63 - 1),
    penalty=st.sampled_from([0.0, 1.5]),
    first=st.integers(1, 10),
    second=st.integers(1, 10),
)
def test_an_answer_may_be_handed_on_twice(
    prompt: list[int], seed: int, penalty: float, first: int, second: int, engine: Engines, drain: Drain
) -> None:
    request = Generate("it", prompt, MOST, seed=seed, frequency_penalty=penalty)
    whole = answered(engine(drafts="forced"), request, drain)
    sent = [token for message in whole if isinstance(message, Tokens) for token in message.tokens]
    for cut in (first, first + second):
        assert answered(engine(), rest_of(request, sent[:cut]), drain) == whole[cut:]


def test_a_resumed_answer_that_was_complete_ends_at_once(engine: Engines, drain: Drain) -> None:
    request = Generate("it", PROMPT, 4, temperature=0.0)
    whole = answered(engine(), request, drain)
    sent = [token for message in whole if isinstance(message, Tokens) for token in message.tokens]
    assert answered(engine(), rest_of(request, sent), drain) == [Tokens("it", finish="length")]
