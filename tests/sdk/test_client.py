"""What a client does, blocking and awaiting alike, against the real gateway with a scripted engine."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from windlass.sdk import (
    AnswerDiffers,
    AsyncClient,
    Client,
    DeadlinePassed,
    NotAllowed,
    NotThere,
    RequestRefused,
    Retries,
    ServerSite,
    ServiceFailed,
    Unreachable,
)
from windlass.serve.records.state import open_state
from windlass.spec.errors import AskedWrongly, NotFound
from windlass.spec.protocol.wire import Cancel, Generate
from windlass.store.database import sqlite_url

pytestmark = pytest.mark.slow


@pytest.fixture
def client(opened: Any, gateway: Any) -> Any:
    return opened.client(gateway.url)


def test_a_text_is_continued(client: Any) -> None:
    answer = client.complete("the lazy dog", max_tokens=3, temperature=0, seed=5, stop=["fox"])
    assert (answer.text, answer.finish) == ("the lazy dog", "length")
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 3)
    assert answer.model == "tiny@3"
    assert answer.request_id


def test_settings_reach_the_engine(client: Any, engine: Any) -> None:
    client.complete([5, 6], max_tokens=2, temperature=0.5, top_p=0.25, seed=5)
    (asked,) = engine.of(Generate)
    assert (asked.tokens, asked.max_tokens, asked.temperature) == ([5, 6], 2, 0.5)
    assert (asked.top_p, asked.seed) == (0.25, 5)


def test_several_answers_come_with_their_scores(client: Any) -> None:
    answer = client.complete("the dog", max_tokens=2, n=2, logprobs=1)
    assert [choice.text for choice in answer.choices] == ["the dog", "the dog"]
    scores = answer.choices[1].scores
    assert [score.logprob for score in scores] == [-0.25, -0.25]
    assert scores[0].token == "the"
    (spoken,) = client.chat("dog", max_tokens=1, logprobs=2).choices
    assert len(spoken.scores[0].rivals) == 2


def test_an_answer_may_begin_with_its_prompt(client: Any) -> None:
    assert client.complete("the dog", max_tokens=1, echo=True).text == "the dogthe"
    assert "".join(client.stream("the dog", max_tokens=1, echo=True)) == "the dogthe"


def test_a_streamed_text_is_the_same_in_pieces(client: Any) -> None:
    stream = client.stream("the lazy dog", max_tokens=3)
    assert list(stream) == ["the", " lazy", " dog"]
    result = stream.result
    assert (result.text, result.finish, result.resumed) == ("the lazy dog", "length", 0)
    assert (result.prompt_tokens, result.completion_tokens, result.model) == (3, 3, "tiny@3")


def test_a_stream_always_has_a_seed(client: Any, engine: Any) -> None:
    client.stream("dog", max_tokens=1).finish()
    client.stream("dog", max_tokens=1, seed=7).finish()
    first, second = engine.of(Generate)
    assert first.seed is not None
    assert second.seed == 7


def test_what_a_stream_cannot_have_is_refused_before_anything_is_sent(client: Any, engine: Any) -> None:
    with pytest.raises(AskedWrongly, match="n=2"):
        client.stream("dog", n=2)
    with pytest.raises(AskedWrongly, match="logprobs"):
        client.stream_chat("dog", logprobs=2)
    assert engine.of(Generate) == []


def test_leaving_the_loop_stops_the_servers_work(client: Any, engine: Any) -> None:
    engine.held = {2}
    stream = client.stream("the lazy dog", max_tokens=9)
    assert next(stream) == "the"
    stream.close()
    engine.wait_for(lambda received: any(isinstance(message, Cancel) for message in received))


def test_a_chat_takes_turns_or_a_bare_text(client: Any, engine: Any) -> None:
    engine.writes = lambda ask: [*ask.tokens[1:-1], 0]
    assert client.chat("the fox").text == "the fox"
    assert client.chat([{"role": "user", "content": "the dog"}]).text == "the dog"
    assert "".join(client.stream_chat("the dog")) == "the dog"


def test_texts_become_vectors(client: Any) -> None:
    assert [len(vector) for vector in client.embed(["the", "dog"])] == [8, 8]


def test_the_served_model_is_named(client: Any) -> None:
    assert client.models() == ["tiny@3"]
    (model,) = client.catalogue()
    assert (model.context_length, model.parameters, model.family) == (128, 1000, "llama")


def test_tokens_go_there_and_back(client: Any) -> None:
    tokens = client.tokenize("the lazy dog")
    assert (tokens.count, tokens.texts, tokens.context_length) == (3, ("the", " lazy", " dog"), 128)
    assert client.detokenize(tokens) == "the lazy dog"
    assert client.tokenize(turns="the dog").count > 2


def test_a_dry_run_says_what_would_become_of_a_request(client: Any, engine: Any) -> None:
    tried = client.dry_run("the lazy dog", max_tokens=9)
    assert (tried.fits, tried.prompt_tokens, tried.max_tokens, tried.model) == (True, 3, 9, "tiny@3")
    refused = client.dry_run(turns="dog", max_tokens=4000)
    assert not refused.fits
    assert refused.failure.code == "context_length_exceeded"
    assert client.dry_run(inputs=["dog"]).fits
    with pytest.raises(AskedWrongly, match="give one of"):
        client.dry_run("dog", turns="dog")
    assert engine.of(Generate) == []


def test_a_refusal_has_all_that_the_server_reported(client: Any, gateway: Any) -> None:
    with pytest.raises(RequestRefused, match="'temperature' is 7") as raised:
        client.complete("dog", temperature=7)
    failure = raised.value
    assert (failure.code, failure.param, failure.status) == ("invalid_value", "temperature", 400)
    assert failure.allowed["maximum"] == 2
    assert failure.corrected["temperature"] == 2
    assert failure.doc_url == f"{gateway.url}/errors/invalid_value"
    assert failure.request_id
    assert isinstance(failure, AskedWrongly)
    assert failure.exit_code == 2
    with pytest.raises(AskedWrongly, match="context is 128"):
        list(client.stream("dog", max_tokens=500))


def test_a_misspelt_setting_is_answered_with_the_nearest(client: Any) -> None:
    with pytest.raises(AskedWrongly, match="did you mean 'max_tokens'"):
        client.complete("dog", max_token=3)


def test_a_model_that_is_not_served_is_not_found(opened: Any, gateway: Any) -> None:
    with pytest.raises(NotThere, match="tiny@3") as raised:
        opened.client(gateway.url, model="other").complete("dog")
    assert isinstance(raised.value, NotFound)


def test_an_engine_that_dies_fails_the_call_once_all_tries_are_over(
    opened: Any, gateway: Any, engine: Any
) -> None:
    engine.dies_after = 1
    with pytest.raises(ServiceFailed, match="engine"):
        opened.client(gateway.url, retries=Retries(tries=2)).complete("dog", max_tokens=5)
    assert len(opened.time.slept) == 1


def test_an_engine_that_comes_back_answers_the_call(
    opened: Any, client: Any, engine: Any, gateway: Any
) -> None:
    client.models()
    engine.stop()
    engine.reset()

    def revive() -> None:
        engine.start()
        gateway.wait_until("/readyz", 200)

    opened.time.meanwhile = revive
    assert client.complete("the dog", max_tokens=2).text == "the dog"
    assert len(opened.time.slept) == 1


def test_a_server_that_is_not_there_is_reported(opened: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(Unreachable, match="cannot be reached") as raised:
        opened.client(f"http://127.0.0.1:{port}").models()
    assert not raised.value.sent
    assert len(opened.time.slept) == Retries().tries - 1


def test_an_address_must_be_one(opened: Any) -> None:
    with pytest.raises(AskedWrongly, match="is not a URL"):
        opened.client("127.0.0.1:8000")
    with pytest.raises(AskedWrongly, match="no address"):
        opened.client([])


def fill(gateway: Any, engine: Any) -> list[Any]:
    """Begin as many answers as the server has room for; none of them ends."""
    engine.held = {1}
    other = Client(gateway.url)
    streams = [other.stream("the", max_tokens=9) for _ in range(engine.slots + 4)]
    assert [next(stream) for stream in streams] == ["the"] * len(streams)
    return streams


def test_a_full_server_is_retried_after_its_retry_after(
    opened: Any, client: Any, engine: Any, gateway: Any
) -> None:
    streams = fill(gateway, engine)

    def free() -> None:
        for stream in streams:
            stream.close()
        engine.held = None
        cancelled = len(streams)
        engine.wait_for(lambda received: sum(isinstance(one, Cancel) for one in received) == cancelled)

    opened.time.meanwhile = free
    assert client.complete("the dog", max_tokens=2).text == "the dog"
    (waited,) = opened.time.slept
    assert waited >= 1, "Retry-After said 1"


def test_a_wait_that_outlasts_the_deadline_is_not_begun(
    opened: Any, client: Any, engine: Any, gateway: Any
) -> None:
    streams = fill(gateway, engine)
    with pytest.raises(ServiceFailed) as raised:
        client.complete("dog", deadline=0.9)
    assert (raised.value.code, raised.value.retry_after_s) == ("queue_full", 1)
    assert opened.time.slept == []
    for stream in streams:
        stream.close()


def test_the_deadline_ends_a_call_and_the_servers_work(opened: Any, gateway: Any, engine: Any) -> None:
    engine.held = {1}
    opened.time.clock = time.monotonic
    client = opened.client(gateway.url, model="tiny")
    with pytest.raises(DeadlinePassed):
        client.complete("the", max_tokens=5, deadline=0.3)
    engine.wait_for(lambda received: any(isinstance(one, Cancel) for one in received))
    stream = client.stream("the", max_tokens=5, deadline=1.5)
    assert next(stream) == "the"
    with pytest.raises(DeadlinePassed):
        next(stream)


def test_waits_count_against_the_deadline(opened: Any, impatient: Any, engine: Any) -> None:
    client = opened.client(impatient.url, model="tiny")
    client.models()
    engine.stop()
    opened.time.meanwhile = lambda: setattr(opened.time, "now", opened.time.now + 100)
    with pytest.raises(DeadlinePassed, match="deadline passed"):
        client.complete("dog", deadline=60)
    assert len(opened.time.slept) == 1


def test_a_retried_answer_is_computed_once(
    opened: Any, start_gateway: Any, proxy: Any, engine: Any, tmp_path: Path
) -> None:
    kept = start_gateway()
    kept.service.database = open_state(sqlite_url(tmp_path / "service.db"))
    kept.wait_until("/readyz", 200)
    way = proxy(kept.url)
    way.cuts = [100]
    answer = opened.client(way.url, model="tiny").complete("the dog", max_tokens=2)
    assert answer.text == "the dog"
    assert way.met == 2
    assert len(engine.of(Generate)) == 1, "the second try got the first one's answer"


def test_a_server_that_stores_no_answers_gets_no_idempotency_key(client: Any, engine: Any) -> None:
    client.complete("dog", max_tokens=1)
    client.complete("dog", max_tokens=1)
    assert len(engine.of(Generate)) == 2
    with pytest.raises(RequestRefused, match="needs a state database"):
        client.complete("dog", idempotency_key="order-17")


@pytest.mark.parametrize("cut", [40, 300, 700, 1100, 1500, 1900])
def test_a_torn_stream_continues_at_the_same_character(
    opened: Any, gateway: Any, proxy: Any, engine: Any, cut: int
) -> None:
    whole = opened.client(gateway.url).complete("春花秋月 the lazy dog", max_tokens=40).text
    way = proxy(gateway.url)
    way.cuts = [cut, cut + 331, cut + 900]
    stream = opened.client(way.url, model="tiny").stream("春花秋月 the lazy dog", max_tokens=40)
    assert "".join(stream) == whole
    assert stream.result.text == whole
    assert stream.result.resumed == 3 if cut > 300 else stream.result.resumed >= 1
    assert len({(ask.seed, ask.model) for ask in engine.of(Generate)[1:]}) == 1


def test_a_torn_chat_continues_too(opened: Any, gateway: Any, proxy: Any) -> None:
    whole = opened.client(gateway.url).chat("the lazy dog", max_tokens=20).text
    way = proxy(gateway.url)
    way.cuts = [1700]
    stream = opened.client(way.url, model="tiny").stream_chat("the lazy dog", max_tokens=20)
    assert "".join(stream) == whole
    assert stream.result.resumed == 1


def test_a_stream_outlives_the_engine(opened: Any, client: Any, engine: Any, gateway: Any) -> None:
    engine.dies_after = 3
    stream = client.stream("the lazy dog", max_tokens=9)
    assert next(stream) == "the"

    def revive() -> None:
        engine.stop()
        engine.reset()
        engine.start()
        gateway.wait_until("/readyz", 200)

    opened.time.meanwhile = revive
    assert "the" + "".join(stream) == "the lazy dogthe lazy dogthe lazy dog"


def test_another_text_than_the_one_begun_is_never_joined_to_it(
    opened: Any, gateway: Any, proxy: Any, engine: Any
) -> None:
    way = proxy(gateway.url)
    way.cuts = [1200]
    stream = opened.client(way.url, model="tiny").stream("the lazy dog", max_tokens=40)
    assert next(stream) == "the"
    engine.writes = lambda ask: list(reversed(ask.tokens)) * 20
    with pytest.raises(AnswerDiffers, match="differs"):
        list(stream)


def test_a_stream_continues_at_another_site_when_one_is_killed(
    opened: Any, gateway: Any, start_gateway: Any, proxy: Any, engine: Any
) -> None:
    second = start_gateway()
    second.wait_until("/readyz", 200)
    whole = opened.client(second.url).complete("the lazy dog", max_tokens=40).text
    first = proxy(gateway.url)
    first.cuts, first.dies = [1500], True
    client = opened.client([first.url, second.url], model="tiny")
    stream = client.stream("the lazy dog", max_tokens=40)
    pieces = list(stream)
    assert "".join(pieces) == whole
    assert stream.result.resumed == 1
    assert opened.time.slept == [], "another site is asked at once"
    assert client.complete("the dog", max_tokens=2).text == "the dog"


@pytest.mark.slow
def test_a_gateway_that_stops_hands_its_streams_to_another_site(
    opened: Any, start_gateway: Any, engine: Any
) -> None:
    first, second = start_gateway(), start_gateway()
    first.wait_until("/readyz", 200)
    second.wait_until("/readyz", 200)
    whole = opened.client(second.url).complete("the lazy dog", max_tokens=60).text
    engine.pause_s = 0.005
    stream = opened.client([first.url, second.url], model="tiny").stream("the lazy dog", max_tokens=60)
    begun = [next(stream), next(stream)]
    engine.held = {10}
    first.stop()
    engine.held = None
    assert "".join([*begun, *stream]) == whole


def test_a_site_that_fails_is_left_alone_and_later_tried_by_one_call(
    opened: Any, gateway: Any, proxy: Any
) -> None:
    home = proxy(gateway.url)
    home.cuts = [0, 0]
    client = opened.client([home.url, gateway.url], model="tiny")
    for _ in range(5):
        assert client.tokenize("the").count == 1
    assert home.met == 2, "two failures, then it rests"
    opened.time.now += 2.5
    for _ in range(3):
        client.tokenize("the")
    assert home.met == 3, "it is asked again, on one connection"
    assert opened.time.slept == []


def test_sites_of_one_rank_share_the_calls(opened: Any, gateway: Any, proxy: Any) -> None:
    ways = [proxy(gateway.url), proxy(gateway.url)]
    client = opened.client([ServerSite(way.url) for way in ways], model="tiny")
    for _ in range(12):
        client.tokenize("dog")
    assert all(way.met for way in ways)


def test_a_key_opens_a_guarded_service_and_a_missing_one_is_explained(
    opened: Any, guarded: Any, given_keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WINDLASS_KEY", raising=False)
    with pytest.raises(NotAllowed, match="needs a key") as raised:
        opened.client(guarded.url).models()
    assert raised.value.hint is not None
    assert "WINDLASS_KEY" in raised.value.hint
    assert opened.time.slept == []
    client = opened.client(guarded.url, key=given_keys.tokens["user"])
    assert list(client.stream("the dog", max_tokens=2)) == ["the", " dog"]
    monkeypatch.setenv("WINDLASS_KEY", given_keys.tokens["user"])
    assert opened.client(guarded.url).models() == ["tiny@3"]


def test_a_refused_key_is_in_no_message(opened: Any, guarded: Any) -> None:
    for key in ("wlk_no-such-key",):
        with pytest.raises(NotAllowed) as raised:
            opened.client(guarded.url, key=key).complete("dog")
        assert "no-such-key" not in str(raised.value)


def test_a_key_that_is_revoked_in_mid_stream_ends_it(
    opened: Any, guarded: Any, given_keys: Any, engine: Any
) -> None:
    name = f"short-{opened.kind}"
    _, token = given_keys.keys.make(name, _maker(), scopes=["use"])
    engine.held = {2}
    stream = opened.client(guarded.url, key=token, model="tiny").stream("the lazy dog", max_tokens=9)
    assert [next(stream), next(stream)] == ["the", " lazy"]
    given_keys.keys.revoke(name, _maker())
    with pytest.raises(NotAllowed) as raised:
        next(stream)
    assert raised.value.code == "unauthorized"
    assert opened.time.slept == []


def test_one_client_serves_many_at_once(gateway: Any, engine: Any) -> None:
    prompts = [f"the {word}" for word in ("fox", "dog", "lazy dog", "quick", "brown fox", "fun")]
    engine.slots = 8
    engine.pause_s = 0.001

    async def awaited() -> list[str]:
        async with AsyncClient(gateway.url) as client:
            asked = (client.complete(prompt, max_tokens=2) for prompt in prompts)
            return [answer.text for answer in await asyncio.gather(*asked)]

    with Client(gateway.url) as client, ThreadPoolExecutor(6) as pool:
        threads = list(pool.map(lambda prompt: client.complete(prompt, max_tokens=2).text, prompts))
    assert threads == asyncio.run(awaited())
    assert all(text.startswith("the") for text in threads)


def test_leaving_a_loop_without_a_word_stops_the_servers_work(gateway: Any, engine: Any) -> None:
    engine.held = {2}
    with Client(gateway.url) as client:
        for _ in client.stream("the lazy dog", max_tokens=9):
            break
        engine.wait_for(lambda received: any(isinstance(one, Cancel) for one in received))


def test_a_server_that_answers_something_else_is_a_sentence(opened: Any) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"

    def serve() -> None:
        for body in (b'{"choices": []}', b"[]", b"data: {}\n\n", b"data: no\n\n"):
            held, _ = listener.accept()
            with held:
                held.recv(65536)
                head = f"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
                held.sendall(head.encode() + body)

    thread = threading.Thread(target=serve)
    thread.start()
    client = opened.client(url, model="x")
    for ask in (client.complete, client.embed, *[lambda text: list(client.stream(text))] * 2):
        with pytest.raises(ServiceFailed, match="is not a Windlass server"):
            ask("dog")
    thread.join()
    listener.close()


def test_no_deadline_is_none(opened: Any, gateway: Any) -> None:
    assert opened.client(gateway.url, deadline=None).complete("the", max_tokens=1).text == "the"


def _maker() -> Any:
    from windlass.serve.records.audit_log import Actor

    return Actor("", "the tests")
