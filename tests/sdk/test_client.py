from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from windlass.sdk import Client, ServiceFailed
from windlass.spec.errors import AskedWrongly, NotFound
from windlass.spec.wire import Cancel, Generate


@pytest.fixture
def client(gateway: Any) -> Iterator[Client]:
    with Client(gateway.url) as client:
        yield client


def test_a_text_is_continued(client: Client) -> None:
    answer = client.complete("the lazy dog", max_tokens=3, temperature=0, seed=5, stop=["fox"])
    assert (answer.text, answer.finish) == ("the lazy dog", "length")
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 3)


def test_settings_reach_the_engine(client: Client, engine: Any) -> None:
    client.complete([5, 6], max_tokens=2, temperature=0.5, top_p=0.25, seed=5)
    (asked,) = engine.of(Generate)
    assert (asked.tokens, asked.most_tokens, asked.temperature) == ([5, 6], 2, 0.5)
    assert (asked.top_p, asked.seed) == (0.25, 5)


def test_a_streamed_text_is_the_same_in_pieces(client: Client) -> None:
    pieces = list(client.stream("the lazy dog", max_tokens=3))
    assert len(pieces) == 3
    assert "".join(pieces) == "the lazy dog"


def test_leaving_the_loop_stops_the_servers_work(client: Client, engine: Any) -> None:
    engine.held = {2}
    stream = client.stream("the lazy dog", max_tokens=9)
    assert next(stream) == "the"
    stream.close()  # type: ignore[attr-defined]
    engine.wait_for(lambda received: any(isinstance(message, Cancel) for message in received))


def test_a_chat_takes_turns_or_a_bare_text(client: Client, engine: Any) -> None:
    engine.writes = lambda ask: [*ask.tokens[1:-1], 0]
    assert client.chat("the fox").text == "the fox"
    assert client.chat([{"role": "user", "content": "the dog"}]).text == "the dog"


def test_texts_become_vectors(client: Client) -> None:
    assert [len(vector) for vector in client.embed(["the", "dog"])] == [8, 8]


def test_the_served_model_is_named(client: Client) -> None:
    assert client.models() == ["tiny@3"]


def test_a_refusal_is_the_callers_mistake_in_the_servers_words(client: Client) -> None:
    with pytest.raises(AskedWrongly, match="'temperature' is 7"):
        client.complete("dog", temperature=7)
    with pytest.raises(AskedWrongly, match="context is 128"):
        list(client.stream("dog", max_tokens=500))


def test_a_model_that_is_not_served_is_not_found(gateway: Any) -> None:
    with Client(gateway.url, model="other") as client, pytest.raises(NotFound, match="tiny@3"):
        client.complete("dog")


def test_an_engine_that_dies_fails_the_call(client: Client, engine: Any, gateway: Any) -> None:
    engine.dies_after = 1
    with pytest.raises(ServiceFailed, match="engine"):
        client.complete("dog", max_tokens=5)
    engine.stop()
    engine.reset()
    engine.dies_after = 1
    engine.start()
    gateway.wait_until("/readyz", 200)
    with pytest.raises(ServiceFailed, match="engine"):
        list(client.stream("dog", max_tokens=5))


def test_a_server_that_is_not_there_is_told() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(ServiceFailed, match="cannot be reached"),
    ):
        client.models()


def test_a_key_opens_a_guarded_service_and_none_is_told_what_to_do(
    guarded: Any, given_keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINDLASS_KEY", raising=False)
    with Client(guarded.url) as client, pytest.raises(AskedWrongly, match="needs a key") as raised:
        client.models()
    assert raised.value.hint is not None
    assert "WINDLASS_KEY" in raised.value.hint
    with Client(guarded.url, key=given_keys.tokens["user"]) as client:
        assert list(client.stream("the dog", max_tokens=2)) == ["the", " dog"]
    monkeypatch.setenv("WINDLASS_KEY", given_keys.tokens["user"])
    with Client(guarded.url) as client:
        assert client.models() == ["tiny@3"]


def test_a_refused_key_is_in_no_message(guarded: Any) -> None:
    with Client(guarded.url, key="wlk_no-such-key") as client, pytest.raises(AskedWrongly) as raised:
        client.complete("dog")
    assert "no-such-key" not in str(raised.value)
