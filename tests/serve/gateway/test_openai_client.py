"""The official client drives the gateway as it drives OpenAI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from windlass.spec.protocol.wire import Generate


@pytest.fixture
def client(gateway: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def impatient_client(impatient: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{impatient.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_completion_has_text_usage_and_a_reason(client: OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="the quick brown", max_tokens=3)
    assert answer.object == "text_completion"
    assert answer.model == "tiny@3"
    assert answer.choices[0].text == "the quick brown"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 3)


def test_a_streamed_completion_is_the_same_text_in_pieces(client: OpenAI) -> None:
    stream = client.completions.create(
        model="tiny@3",
        prompt="机器学习 is fun",
        max_tokens=8,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text.startswith("机器学习 is")
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["length"]


def test_a_chat_answers_with_the_assistants_turn(client: OpenAI, engine: Any) -> None:
    engine.writes = lambda ask: [*ask.tokens[1:3], 0]
    answer = client.chat.completions.create(
        model="tiny@prod",
        messages=[{"role": "user", "content": [{"type": "text", "text": "the quick"}]}],
    )
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "the quick"
    assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_chat_begins_with_the_role_and_ends_with_the_reason(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "the"}, {"role": "user", "content": "dog"}]
    chunks = list(
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, stream=True, n=2)
    )
    firsts = [chunk.choices[0].delta.role for chunk in chunks[:2]]
    assert firsts == ["assistant", "assistant"]
    assert sorted(c.index for chunk in chunks for c in chunk.choices if c.finish_reason) == [0, 1]
    assert all(chunk.usage is None for chunk in chunks)


def test_log_probabilities_come_with_bytes_and_rivals(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "fox"}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    assert all(entry.logprob == -0.25 and len(entry.top_logprobs) == 2 for entry in logprobs.content)


def test_embeddings_come_as_numbers_and_as_base64(client: OpenAI) -> None:
    packed = client.embeddings.create(model="tiny", input=["the quick", "dog"])  # the client asks for base64
    plain = client.embeddings.create(model="tiny", input=["the quick", "dog"], encoding_format="float")
    assert [e.embedding for e in packed.data] == [e.embedding for e in plain.data]
    assert len(plain.data[0].embedding) == 8
    assert plain.data[0].embedding[0] == 2.0


def test_models_are_listed_and_shown(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny@3"]
    assert client.models.retrieve("tiny").id == "tiny@3"


def test_a_wrong_value_is_a_bad_request_that_names_it(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="dog", temperature=9)
    assert caught.value.param == "temperature"
    assert caught.value.code == "invalid_value"


def test_another_model_is_not_found_and_the_served_one_is_named(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny@3"):
        client.completions.create(model="gpt-4", prompt="dog")


def test_a_full_queue_is_a_rate_limit_with_a_time_to_wait(client: OpenAI, engine: Any, gateway: Any) -> None:
    engine.held = {0}
    streams = [
        client.completions.create(model="tiny", prompt="dog", stream=True) for _ in range(engine.slots + 4)
    ]
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="tiny", prompt="dog")
    assert caught.value.response.headers["retry-after"] == "1"
    for stream in streams:
        stream.close()


def test_an_engine_that_dies_ends_a_stream_with_an_error(impatient_client: OpenAI, engine: Any) -> None:
    engine.dies_after = 2
    stream = impatient_client.completions.create(model="tiny", prompt="dog", max_tokens=9, stream=True)
    with pytest.raises(openai.APIError, match="engine"):
        list(stream)


def test_an_engine_that_dies_fails_a_whole_answer_with_503(impatient_client: OpenAI, engine: Any) -> None:
    engine.dies_after = 2
    with pytest.raises(openai.InternalServerError) as caught:
        impatient_client.completions.create(model="tiny", prompt="dog", max_tokens=9)
    assert caught.value.status_code == 503


def test_the_same_seed_reaches_the_engine_and_siblings_get_others(
    client: OpenAI, engine: Any, gateway: Any
) -> None:
    for _ in range(2):
        client.completions.create(model="tiny", prompt="dog", seed=7, n=2, max_tokens=1)
    seeds = [message.seed for message in engine.of(Generate)]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] == 7
    assert seeds[1] != 7
