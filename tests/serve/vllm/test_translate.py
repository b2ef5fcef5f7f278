"""What goes to vLLM and what its events become, without any process."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.vllm.translate import AnswerStream, BadVllmReply, body_of, refusal
from windlass.spec.protocol.wire import Alternative, Failed, Generate, Grammar, PromptScores, Tokens


def event(**choice: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "text": "", **choice}]})


def test_a_request_says_everything_that_decides_about_an_answer() -> None:
    request = Generate(
        "a", [1, 2], 5, temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, presence_penalty=0.2,
        frequency_penalty=0.3, repetition_penalty=1.1, seed=9, logprobs=2, stop_tokens=[3],
        logit_bias={4: -1.0}, tenant="t", priority=2,
    )  # fmt: skip
    body = body_of(request, "base")
    assert body["prompt"] == [1, 2]
    assert body["model"] == "base"
    assert body["priority"] == -2, "vLLM takes the lowest first"
    assert body["cache_salt"] == "t"
    assert "cache_salt" not in body_of(msgspec.structs.replace(request, shared_prefix=True), "base")
    assert body["logit_bias"] == {"4": -1.0}
    asked = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
             "repetition_penalty", "seed", "logprobs", "stop_token_ids")  # fmt: skip
    assert [body[name] for name in asked] == [5, 0.5, 7, 0.9, 0.1, 0.2, 0.3, 1.1, 9, 2, [3]]


@pytest.mark.parametrize(
    ("grammar", "sent"),
    [
        (Grammar("json"), {"json_object": True}),
        (Grammar("schema", '{"type": "object"}'), {"json": {"type": "object"}}),
        (Grammar("regex", "a+"), {"regex": "a+"}),
        (Grammar("choice", '["yes", "no"]'), {"choice": ["yes", "no"]}),
    ],
)
def test_a_grammar_becomes_a_structured_output(grammar: Grammar, sent: dict[str, Any]) -> None:
    assert body_of(Generate("a", [1], 1, grammar=grammar), "base")["structured_outputs"] == sent


def test_an_adapter_is_requested_by_its_name() -> None:
    assert body_of(Generate("a", [1], 1, adapter="poet"), "base")["model"] == "poet"


def test_an_unknown_adapter_is_refused_with_the_nearest_name() -> None:
    failed = refusal(Generate("a", [1], 1, adapter="poat"), "base", ["poet"], 10)
    assert failed is not None
    assert failed.code == "unknown_adapter"
    assert "'poet'" in failed.message


def test_what_does_not_fit_the_context_is_refused() -> None:
    failed = refusal(Generate("a", [1, 2], 9), "base", [], 10)
    assert failed is not None
    assert failed.code == "context_exceeded"


def test_the_stop_token_is_not_part_of_the_answer() -> None:
    hearing = AnswerStream(Generate("a", [1], 5, stop_tokens=[3]))
    assert hearing.receive(event(token_ids=[8, 3], finish_reason="stop")) == [Tokens("a", [8], finish="stop")]
    assert hearing.finished


def test_rivals_come_likeliest_first_and_as_many_as_requested() -> None:
    hearing = AnswerStream(Generate("a", [1], 5, logprobs=2))
    top = {"token_id:5": -3.0, "token_id:6": -1.0, "token_id:7": -2.0}
    logprobs = {"token_logprobs": [-3.0], "top_logprobs": [top]}
    (said,) = hearing.receive(event(token_ids=[5], logprobs=logprobs, finish_reason=None))
    rivals = [[Alternative(6, -1.0), Alternative(7, -2.0)]]
    assert said == Tokens("a", [5], logprobs=[-3.0], alternatives=rivals)


def test_the_prompt_is_scored_before_the_first_token() -> None:
    hearing = AnswerStream(Generate("a", [1, 2, 3], 5, logprobs=0, score_prompt=True))
    logprobs = {"token_logprobs": [None, -0.5, -0.25, -4.0], "top_logprobs": None}
    said = hearing.receive(event(token_ids=[9], logprobs=logprobs, finish_reason=None))
    assert said == [PromptScores("a", [-0.5, -0.25]), Tokens("a", [9], logprobs=[-4.0])]


def test_a_vllm_too_old_to_send_token_ids_is_distinguished_from_an_empty_answer() -> None:
    with pytest.raises(BadVllmReply, match="later is required"):
        AnswerStream(Generate("a", [1], 5)).receive(event(text="hello", finish_reason=None))


def test_an_error_in_the_stream_ends_the_answer() -> None:
    hearing = AnswerStream(Generate("a", [1], 5))
    (said,) = hearing.receive('{"error": {"message": "out of memory"}}')
    assert said == Failed("a", "engine_failed", "vLLM refused: out of memory")
    assert hearing.finished


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_what_is_no_event_is_garbled_and_never_anything_worse(data: str) -> None:
    hearing = AnswerStream(Generate("a", [1], 5))
    try:
        said = hearing.receive(data)
    except BadVllmReply:
        return
    assert said == []


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=8))
def test_tokens_arrive_once_and_in_order_however_they_are_cut(parts: list[list[int]]) -> None:
    hearing = AnswerStream(Generate("a", [1], 50))
    heard = [said for part in parts for said in hearing.receive(event(token_ids=part, finish_reason=None))]
    tokens = [token for said in heard if isinstance(said, Tokens) for token in said.tokens]
    assert tokens == [token for part in parts for token in part]
