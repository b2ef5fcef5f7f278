"""Half-typed calls, and what should be offered first; ¦ is the cursor, which otherwise stands at the end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from windlass.completion.suggestions import Suggestions

URL = "http://127.0.0.1:8000"
KEY = '-H "authorization: Bearer $WINDLASS_KEY"'

CASES = {
    "json": [
        ("{", "model"),
        ('{"mod', "model"),
        ('{"model": ', "poems"),
        ('{"model": "es', "essays"),
        ('{"model": "poems@', "poems@2"),
        ('{"model": "poems:', "poems:poet"),
        ('{"model": "poems", ', "prompt"),
        ('{"model": "poems", "mess', "messages"),
        ('{"model": "poems", "messages": [{"role": "', "user"),
        ('{"model": "poems", "messages": [{"role": "as', "assistant"),
        ('{"model": "poems", "messages": [{"role": "user", ', "content"),
        ('{"model": "poems", "messages": [{"role": "user", "content": "Hi"}', "]"),
        ('{"model": "poems", "prompt": "Hi", "temp', "temperature"),
        ('{"model": "poems", "prompt": "Hi", "tempratur', "temperature"),
        ('{"model": "poems", "prompt": "Hi", "stream": ', "true"),
        ('{"model": "poems", "prompt": "Hi", "stream": f', "false"),
        ('{"model": "poems", "prompt": "Hi", "temperature": ', "1"),
        ('{"model": "poems", "prompt": "Hi"', "}"),
        ('{"model": "po¦", "prompt": "Hi"}', "poems"),
        ('{"model": "poems", "prompt": "Hi", "pres¦": 1}', "presence_penalty"),
        ('{"model": "poems", "input": "Hi", "encoding_format": "b', "base64"),
        ('{"model": "poems", "prompt": "Hi", "response_format": {"type": "json_s', "json_schema"),
        ('{"route": "/v1/ch', "/v1/chat/completions"),
    ],
    "curl": [
        ("cur", "curl"),
        ("curl ", "/v1/completions"),
        (f"curl {URL}/v1/ch", "/v1/chat/completions"),
        (f"curl {URL}/v1/emb", "/v1/embeddings"),
        ("curl localhost:8000/v1/mod", "/v1/models"),
        (f"curl {URL}/v1/models/po", "/v1/models/poems"),
        (f"curl {URL}/v1/completions ", "-H authorization: Bearer $WINDLASS_KEY"),
        (f"curl {URL}/v1/completions {KEY} ", "-H content-type: application/json"),
        (f"curl {URL}/v1/completions {KEY} -H con", "content-type: application/json"),
        (f"curl {URL}/v1/completions {KEY} -H 'content-type: application/json' ", "-d"),
        (f"curl {URL}/v1/completions -H 'idem", "idempotency-key: request-1"),
        (f"curl {URL}/v1/completions -X P", "POST"),
        (f"curl {URL}/v1/completions {KEY} -d '", "{"),
        (f"curl {URL}/v1/completions {KEY} -d '{{\"model\": \"po", "poems"),
        (f"curl {URL}/v1/chat/completions -d '{{\"model\": \"poems\", ", "messages"),
        (f"curl {URL}/v1/chat/completions \\\n  -d '{{\"model\": \"poems\", \"messages\": [{{\"ro", "role"),
        (f'curl {URL}/v1/completions -d "{{\\"model\\": \\"poems\\", \\"pro', "prompt"),
        (f"curl {URL}/v1/completions -d '{{\"model\": \"poems\", \"max¦\": 5}}' {KEY}", "max_tokens"),
        (f"curl -s {URL}/v1/completions --da", "--data"),
    ],
    "python": [
        ("client.chat.", "client.chat.completions.create("),
        ("client.comple", "client.completions.create("),
        ("from windlass.sdk import Client\nclient = Client()\nclient.comp", "client.complete("),
        ("client.chat.completions.create(", "model"),
        ('client.chat.completions.create(model="po', "poems"),
        ('client.chat.completions.create(model="poems", mes', "messages"),
        ('client.chat.completions.create(model="poems", messages=[{"role": "us', "user"),
        ('client.chat.completions.create(model="poems", messages=[{}], te', "temperature"),
        ('client.completions.create(model="poems", prompt="Hi", stream=', "true"),
        ('client.completions.create(model="poems", prompt="Hi"', ")"),
        ('client.completions.create(model="poems", prompt="Hi", extra_body={"top', "top_k"),
        ('client.embeddings.create(model="poems", inp', "input"),
        ('text = client.complete("Once", max', "max_tokens"),
        ("client.chat(tur", "turns"),
        ("httpx.po", "httpx.post("),
        (f'httpx.post("{URL}/v1/em', "/v1/embeddings"),
        (f'httpx.post("{URL}/v1/embeddings", ', "json"),
        (f'httpx.post("{URL}/v1/embeddings", json={{"model": "poems", "in', "input"),
        (f'requests.post("{URL}/v1/completions", json={{"model": "', "poems"),
        (f'requests.post("{URL}/v1/completions", json={{}}, headers={{"auth', "authorization"),
        ("print(\n    client.completions.create(\n        model='poe¦',\n    )\n)", "poems"),
    ],
    "cli": [
        ("wind", "windlass"),
        ("windlass ser", "serve"),
        ("windlass serve ", "poems"),
        ("windlass serve es", "essays"),
        ("windlass serve poems@pr", "poems@prod"),
        ("windlass serve poems --rep", "--replicas"),
        ("windlass serve poems --precision ", "float32"),
        ("windlass serve poems --precision=in", "int8"),
        ("windlass serve poems --kv float3", "float32"),
        ("windlass models ", "list"),
        ("windlass models pro", "promote"),
        ("windlass models compress poems --we", "--weights"),
        ("windlass models compress poems --weights int8 --na", "--name"),
        ("windlass plan serv", "serving"),
        ("windlass plan po", "poems.toml"),
        ("windlass train ", "poems.toml"),
        ("windlass train poems.toml --wor", "--workers"),
        ("windlass jobs show es", "essays"),
        ("windlass completion z", "zsh"),
        ("windlass plan sweep job.toml --runner ", "direct"),
        ("windlass serve po¦ --replicas 2", "poems"),
    ],
}  # fmt: skip

ALL = [(kind, text, expected) for kind, cases in CASES.items() for text, expected in cases]
WITHIN_S = 0.05


def test_there_are_enough_calls_of_each_kind() -> None:
    assert len(ALL) >= 40
    assert all(len(cases) >= 10 for cases in CASES.values())


@pytest.mark.parametrize(("kind", "text", "expected"), ALL, ids=[f"{kind}: {text}" for kind, text, _ in ALL])
def test_the_right_candidate_comes_first(
    offer_for: Callable[..., Suggestions], kind: str, text: str, expected: str
) -> None:
    offer = offer_for(text)
    assert offer.kind == kind
    assert [each.text for each in offer.candidates[:1]] == [expected], offer.candidates[:5]


def test_each_is_answered_in_time(offer_for: Callable[..., Suggestions]) -> None:
    """The bound is issue 8's: 50 ms after start. What counts is this process's own time."""
    slow = {text: seconds for _, text, _ in ALL if (seconds := median_s(offer_for, text)) > WITHIN_S}
    assert not slow


def median_s(offer_for: Callable[..., Suggestions], text: str) -> float:
    taken = []
    for _ in range(5):
        start = time.process_time()
        offer_for(text)
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def test_what_openais_client_does_not_know_goes_into_extra_body(
    offer_for: Callable[..., Suggestions],
) -> None:
    call = 'client.completions.create(model="poems", top_k=5, prompt="Hi")'
    assert offer_for(call).fixed == call.replace("top_k=5", 'extra_body={"top_k": 5}')


def test_the_field_under_the_cursor_is_explained(offer_for: Callable[..., Suggestions]) -> None:
    told = offer_for('{"model": "poems", "prompt": "Hi", "temper¦ature": 0.7}').explains
    assert told is not None
    assert (told.name, told.type, told.range, told.default) == ("temperature", "number", "0 to 2", "1")
    assert told.about
    header = offer_for(f"curl {URL}/v1/completions -H 'x-deadline-ms: 5").explains
    assert header is not None
    assert header.name == "X-Deadline-Ms"
    option = offer_for("windlass serve poems --replicas ").explains
    assert option is not None
    assert option.type == "integer"


def test_parameters_are_offered_with_type_range_default_and_meaning(
    offer_for: Callable[..., Suggestions],
) -> None:
    offered = {each.text: each for each in offer_for('{"model": "poems", "prompt": "Hi", ').candidates}
    assert "model" not in offered
    assert "suffix" not in offered, "it only takes null"
    assert offered["max_tokens"].default == "16"
    assert offered["top_p"].range == "above 0, at most 1"
    assert all(each.type and each.about for each in offered.values())
