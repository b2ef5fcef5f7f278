"""The life of an answer: clients that disconnect, engines that end and return, metrics, keep-alive."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import pytest

from windlass.http import json_body, streaming
from windlass.http.streaming import KEEP_ALIVE
from windlass.serve.gateway.routes import generation
from windlass.spec.protocol.wire import Cancel, Generate

pytestmark = pytest.mark.slow

ASK: dict[str, Any] = {"model": "tiny", "prompt": "dog", "max_tokens": 20}


def figure(http: httpx.Client, name: str) -> float:
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def texts_of(stream: str) -> list[Any]:
    """Return the content of a stream's chunks, without ids and times."""
    chunks = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    return [(choice["text"], choice["logprobs"]) for chunk in chunks for choice in chunk["choices"]]


def cancelled(received: list[Any]) -> bool:
    """Return whether every submitted answer has been cancelled."""
    submitted = {message.id for message in received if isinstance(message, Generate)}
    return bool(submitted) and submitted == {
        message.id for message in received if isinstance(message, Cancel)
    }


def test_a_client_that_leaves_a_stream_cancels_all_its_answers(http: httpx.Client, engine: Any) -> None:
    engine.held = {2}
    with http.stream("POST", "/v1/completions", json=ASK | {"stream": True, "n": 3}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        assert engine.of(Cancel) == []
    engine.wait_for(cancelled)
    assert len(engine.of(Cancel)) == 3


def test_a_client_that_leaves_before_the_first_token_cancels_too(http: httpx.Client, engine: Any) -> None:
    engine.held = {0}
    with http.stream("POST", "/v1/completions", json=ASK | {"stream": True}):
        engine.wait_for(lambda received: len(received) == 1)
    engine.wait_for(cancelled)


def test_a_client_that_leaves_while_waiting_for_a_whole_answer_cancels_it(gateway: Any, engine: Any) -> None:
    engine.held = {1}
    body = json.dumps(ASK)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=60) as line:
        line.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        engine.wait_for(lambda received: len(received) == 1)
    engine.wait_for(cancelled)


def test_a_stop_string_ends_the_answer_and_the_engines_work(http: httpx.Client, engine: Any) -> None:
    engine.held = {10}
    answer = http.post("/v1/completions", json=ASK | {"prompt": "the lazy dog", "stop": ["dog"]}).json()
    assert answer["choices"][0]["text"] == "the lazy "
    assert answer["choices"][0]["finish_reason"] == "stop"
    engine.wait_for(cancelled)


def test_a_stop_string_across_tokens_never_shows_in_a_stream(http: httpx.Client) -> None:
    ask = ASK | {"prompt": "the lazy dog the", "stop": ["g the"], "stream": True}
    text = ""
    for line in http.post("/v1/completions", json=ask).text.split("\n\n"):
        if line.startswith("data: {"):
            text += json.loads(line[6:])["choices"][0]["text"]
    assert text == "the lazy do"


def test_log_probabilities_end_where_the_text_is_cut(http: httpx.Client) -> None:
    ask = ASK | {"prompt": "the lazy dog", "stop": ["dog"], "logprobs": 2}
    logprobs = http.post("/v1/completions", json=ask).json()["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]).startswith("the lazy")
    assert not any("dog" in token and token != " dog" for token in logprobs["tokens"])
    assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
    assert all(len(rivals) == 3 for rivals in logprobs["top_logprobs"])


def test_an_echo_begins_with_the_prompt_and_its_scores(http: httpx.Client) -> None:
    ask = ASK | {"prompt": "the lazy dog", "echo": True, "logprobs": 1, "max_tokens": 1}
    choice = http.post("/v1/completions", json=ask).json()["choices"][0]
    assert choice["text"] == "the lazy dogthe"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0, -0.25]
    assert choice["logprobs"]["text_offset"] == [0, 3, 8, 12]
    assert choice["logprobs"]["top_logprobs"][0] is None


def test_a_streamed_echo_sends_the_prompt_first(http: httpx.Client) -> None:
    ask = ASK | {"prompt": ["the dog", "fox"], "echo": True, "max_tokens": 1, "stream": True, "n": 2}
    texts = ["", "", "", ""]
    for line in http.post("/v1/completions", json=ask).text.split("\n\n"):
        if line.startswith("data: {"):
            choice = json.loads(line[6:])["choices"][0]
            texts[choice["index"]] += choice["text"]
    assert texts == ["the dogthe", "the dogthe", *["fox" + texts[2][3:]] * 2]


def test_an_end_token_is_no_part_of_the_text(http: httpx.Client, engine: Any) -> None:
    engine.writes = lambda ask: [*ask.tokens, 0]
    answer = http.post("/v1/completions", json=ASK).json()
    assert answer["choices"][0] == {"index": 0, "text": "dog", "logprobs": None, "finish_reason": "stop"}


def test_waiting_streams_are_kept_alive(
    http: httpx.Client, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "KEEP_ALIVE_S", 0.01)
    engine.held = {0}
    with http.stream("POST", "/v1/completions", json=ASK | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert next(response.iter_raw()) == KEEP_ALIVE


def test_a_client_that_is_cut_while_it_reads_nothing_has_its_work_given_up() -> None:
    closed: list[bool] = []

    async def source() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    stream = streaming.EventStream(source(), "id", lambda: closed.append(True))
    asyncio.run(stream({"type": "http"}, receive, send))
    assert closed == [True]


def test_work_that_others_give_up_is_not_mistaken_for_a_client_that_left() -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    async def watched() -> None:
        with streaming.DisconnectWatch(receive):
            await asyncio.Event().wait()

    async def cancelled() -> bool:
        task = asyncio.create_task(watched())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert asyncio.run(cancelled())


def test_a_body_that_does_not_arrive_is_not_waited_for(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "BODY_TIMEOUT_S", 0.05)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    with socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])), timeout=60) as line:
        line.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
        assert b" 408 " in line.recv(1000)


def test_the_gateway_is_not_ready_without_an_engine_and_ready_again_with_one(
    impatient: Any, engine: Any
) -> None:
    http = httpx.Client(base_url=impatient.url, timeout=60)
    engine.stop()
    impatient.wait_until("/readyz", 503)
    response = http.post("/v1/completions", json=ASK)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "engine_unavailable"
    assert http.get("/healthz").status_code == 200
    assert http.get("/v1/models").json()["data"][0]["context_length"] == 128
    engine.start()
    impatient.wait_until("/readyz", 200)
    assert http.post("/v1/completions", json=ASK).status_code == 200
    http.close()


def test_a_stream_that_loses_its_engine_ends_with_one_error_event(impatient: Any, engine: Any) -> None:
    engine.dies_after = 3
    url = f"{impatient.url}/v1/completions"
    events = httpx.post(url, json=ASK | {"stream": True}, timeout=60).text.strip().split("\n\n")
    kind, data = events[-1].split("\n")
    assert kind == "event: error"
    assert json.loads(data[6:])["error"]["code"] == "engine_unavailable"
    assert not any("[DONE]" in event for event in events)


def test_a_stream_continues_where_its_engine_ended(http: httpx.Client, engine: Any) -> None:
    ask = ASK | {"prompt": "the lazy dog", "logprobs": 2, "seed": 3, "stream": True}
    undisturbed = texts_of(http.post("/v1/completions", json=ask).text)
    engine.dies_after, engine.revives = 3, True
    assert texts_of(http.post("/v1/completions", json=ask).text) == undisturbed
    attempts = engine.of(Generate)[1:]
    assert [len(each.tokens) for each in attempts] == [3, 6, 9, 12, 15, 18, 21]
    assert [each.resumed_tokens for each in attempts] == [0, 3, 6, 9, 12, 15, 18]
    assert {len(each.tokens) + each.max_tokens for each in attempts} == {23}
    assert len({each.id for each in attempts}) == len(attempts)


def test_the_scores_of_a_prompt_are_sent_once_whichever_replica_continues(
    http: httpx.Client, engine: Any
) -> None:
    engine.dies_after, engine.revives = 2, True
    ask = ASK | {"prompt": "the lazy dog", "echo": True, "logprobs": 1, "max_tokens": 5}
    logprobs = http.post("/v1/completions", json=ask).json()["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [None, -1.0, -1.0, *[-0.25] * 5]
    assert [each.score_prompt for each in engine.of(Generate)] == [True, False, False]


def test_a_request_that_kills_every_engine_is_not_tried_for_ever(http: httpx.Client, engine: Any) -> None:
    engine.dies_after, engine.revives = 0, True
    response = http.post("/v1/completions", json=ASK)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "poisonous")
    assert len(engine.of(Generate)) == 2


def test_more_answers_than_ever_fit_are_refused_for_good(
    engine: Any, start_gateway: Callable[..., Any]
) -> None:
    gateway = start_gateway(queue=0)
    gateway.wait_until("/readyz", 200)
    response = httpx.post(f"{gateway.url}/v1/completions", json=ASK | {"n": 5}, timeout=60)
    assert response.status_code == 400
    assert httpx.post(f"{gateway.url}/v1/completions", json=ASK | {"n": 4}, timeout=60).status_code == 200


def test_a_left_place_in_the_queue_is_free_again(http: httpx.Client, engine: Any) -> None:
    engine.held = {1}
    with http.stream("POST", "/v1/completions", json=ASK | {"stream": True, "n": 8}) as response:
        lines = response.iter_lines()  # kept: the client leaves when it is collected
        next(lines)
        assert http.post("/v1/completions", json=ASK).status_code == 429
    engine.wait_for(cancelled)
    engine.held = None
    assert http.post("/v1/completions", json=ASK).status_code == 200


def test_figures_count_requests_tokens_and_what_the_engine_says(http: httpx.Client) -> None:
    written = 'windlass_generation_tokens_total{model="tiny@3"}'
    http.post("/v1/completions", json=ASK)
    before = figure(http, written)
    http.post("/v1/completions", json=ASK)
    http.post("/v1/completions", json=ASK | {"temperature": 9})
    assert figure(http, written) == before + 20
    assert figure(http, 'windlass_http_requests_total{route="/v1/completions",status="200"}') >= 1
    assert figure(http, 'windlass_http_requests_total{route="/v1/completions",status="400"}') >= 1
    assert figure(http, 'windlass_num_requests_waiting{replica="engine"}') == 2
    assert figure(http, 'windlass_time_to_first_token_seconds_count{model="tiny@3"}') >= 1
    assert figure(http, "windlass_num_requests_in_flight") == 0


def test_many_inputs_are_embedded_in_order(http: httpx.Client) -> None:
    inputs = [[5] * (1 + number % 7) for number in range(200)]
    data = http.post("/v1/embeddings", json={"model": "tiny", "input": inputs}).json()["data"]
    assert [entry["embedding"][0] for entry in data] == [len(tokens) for tokens in inputs]
    assert [entry["index"] for entry in data] == list(range(200))


def test_a_mistake_of_ours_is_reported_without_its_content(
    http: httpx.Client, gateway: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the secret prompt")

    monkeypatch.setattr(gateway.fleet, "submit", fail)
    with caplog.at_level(logging.DEBUG):
        response = http.post("/v1/completions", json=ASK)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "internal")
    assert error["request_id"] in caplog.text
    assert "secret" not in caplog.text + response.text


def test_the_error_page_explains_every_code(http: httpx.Client) -> None:
    from windlass.http.errors import CODES

    text = http.get("/errors").text
    assert all(f'id="{code}"' in text for code in CODES)


def test_the_openapi_document_is_true(http: httpx.Client) -> None:
    import jsonschema

    document = http.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/models", "/readyz"} <= set(
        document["paths"]
    )
    assert "HTTPValidationError" not in json.dumps(document)  # what FastAPI would promise by itself

    def valid(name: str, value: Any) -> bool:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        return bool(jsonschema.Draft202012Validator(schema).is_valid(value))

    assert valid("CompletionRequest", ASK)
    assert not valid("CompletionRequest", ASK | {"tempreature": 1})
    assert not valid("CompletionRequest", ASK | {"suffix": "x"})
    assert not valid("CompletionRequest", ASK | {"stop": ["a"] * 5})
    assert valid("CompletionReply", http.post("/v1/completions", json=ASK).json())
    assert valid("ErrorReply", http.post("/v1/completions", json=ASK | {"n": 0}).json())
    assert valid("ModelList", http.get("/v1/models").json())
    embedded = http.post("/v1/embeddings", json={"model": "tiny", "input": "dog"})
    assert valid("EmbeddingReply", embedded.json())
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "fox"}],
        "max_tokens": 3,
        "logprobs": True,
    }
    assert valid("ChatReply", http.post("/v1/chat/completions", json=chat).json())
