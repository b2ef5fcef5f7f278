"""Laws of completing: nothing fails, what is offered fits, and what is set right is taken by the server."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from windlass.completion.complete import complete
from windlass.completion.suggestions import Suggestions, put

BODIES = [
    '{"model": "poems", "prompt": "Once upon", "max_tokens": 20, "temperature": 0.7, "stream": true}',
    '{"model": "poems@2", "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", '
    '"content": "Hi"}], "stop": ["\\n", "end"], "seed": -5, "response_format": {"type": "text"}}',
    '{\n  "model": "poems:poet",\n  "input": ["a", "b"],\n  "encoding_format": "float"\n}',
    '{"model": "essays", "text": "count \\"these\\"", "special": false}',
    '{"model": "poems", "prompt": [1, 2, 3], "logit_bias": {"5": -100, "7": 2.5}, "n": 2, "echo": true}',
]
URL = "http://127.0.0.1:8000"
CURLS = [
    f"curl -N {URL}/v1/completions -H \"authorization: Bearer $KEY\" -H 'content-type: application/json' "
    f"-d '{BODIES[0]}'",
    f"curl -X POST {URL}/v1/chat/completions \\\n  -H 'x-deadline-ms: 500' \\\n  -d '{BODIES[1]}'",
    f'curl {URL}/v1/completions -d "{{\\"model\\": \\"poems\\", \\"prompt\\": \\"Hi\\"}}"',
]
PYTHONS = [
    'r = client.chat.completions.create(model="poems", messages=[{"role": "user", "content": "Hi"}], n=2)',
    "from openai import OpenAI\n\nclient = OpenAI(base_url='http://127.0.0.1:8000/v1')\n"
    "for part in client.completions.create(\n    model='poems', prompt=f\"Once {name}\", stream=True,\n"
    "    # few\n    extra_body={'top_k': 5},\n):\n    print(part)",
    'text = client.complete("Once", max_tokens=20, stop=["x"]).text',
    f'httpx.post("{URL}/v1/embeddings", json={{"model": "poems", "input": "Hi"}}, headers={{"a": "b"}})',
]
COMMANDS = [
    "windlass serve poems@2 --replicas 2 --precision int8 --adapter poet=poet@1 --json",
    "windlass plan poems.toml --fleet 8xH100-SXM5 --deadline 3d",
    "windlass models compress poems --weights int8 --home=/tmp/x",
]
ALL = [*BODIES, *CURLS, *PYTHONS, *COMMANDS]

QUICK = settings(max_examples=40, deadline=None)
OK = {"it is not finished", "a quote is missing"}
"""What a text that stops in the middle lacks; anything else would be a mistake in it."""


Takes = Callable[[str, Any], None]


@pytest.fixture(scope="session")
def server_takes(document: dict[str, Any]) -> Takes:
    """Fail unless the document allows a body for a path."""
    found = {}
    for path, methods in document["paths"].items():
        for told in methods.values():
            if "requestBody" in told:
                schema = told["requestBody"]["content"]["application/json"]["schema"]
                found[path] = Draft202012Validator({**schema, "components": document["components"]})
    return lambda path, body: found[path].validate(body)


def check_whole(offer: Suggestions, server_takes: Takes) -> None:
    """The call that is written is one that the server takes."""
    if offer.call.get("json"):
        server_takes(offer.path, json.loads(offer.call["json"]))
    if offer.call.get("python"):
        ast.parse(offer.call["python"])


@QUICK
@given(text=st.sampled_from(ALL), data=st.data())
def test_any_part_of_a_call_with_any_cursor_is_answered(
    offer_for: Callable[..., Suggestions], server_takes: Takes, text: str, data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, len(text)))
    cursor = data.draw(st.integers(0, end))
    offer = offer_for(f"{text[:cursor]}¦{text[cursor:end]}")
    check_whole(offer, server_takes)
    for each in (*offer.candidates, *offer.fixes):
        start, stop = each.replace
        assert 0 <= start <= stop <= end


@QUICK
@given(
    text=st.text(alphabet="{}[]()\"'`,:=\\\n -#@x1t.“：curlwindlass"),
    kind=st.sampled_from(["json", "curl", "python"]),
)
def test_no_text_is_too_broken(
    offer_for: Callable[..., Suggestions], server_takes: Takes, text: str, kind: str
) -> None:
    check_whole(offer_for(text, kind=kind), server_takes)
    offer_for(f"windlass {text}")


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"a":' * 5000, "(" * 5000, "f(" * 3000, '"' * 5000, "\\" * 5000]
)
def test_deep_and_long_texts_are_answered(offer_for: Callable[..., Suggestions], text: str) -> None:
    for before in ("", "curl -d '", "client.complete(", "windlass serve "):
        offer_for(before + text, kind="auto")


@pytest.mark.parametrize("text", [*BODIES, *CURLS, *PYTHONS])
def test_any_server_may_answer(text: str) -> None:
    schema = {
        "type": "object",
        "properties": {"odd": {"$ref": "#/components/schemas/None"}},
        "required": ["odd"],
    }
    odd = {"post": {"requestBody": {"content": {"application/json": {"schema": schema}}}}}
    for document in ({}, {"paths": {"/v1/completions": {"post": {}}}}, {"paths": {"/v1/completions": odd}}):
        for end in range(0, len(text), 3):
            complete(text[:end], document=document)


@QUICK
@given(text=st.sampled_from(BODIES), data=st.data())
def test_the_first_candidate_fits_into_a_body(
    offer_for: Callable[..., Suggestions], server_takes: Takes, text: str, data: st.DataObject
) -> None:
    part = text[: data.draw(st.integers(1, len(text)))]
    first = offer_for(part)
    if first.candidates:
        taken = offer_for(put(part, first.candidates[0]))
        assert {fix.about for fix in taken.fixes} <= OK, (part, first.candidates[0], taken.fixes)
        server_takes(taken.path, json.loads(taken.fixed))


@QUICK
@given(text=st.sampled_from(PYTHONS), data=st.data())
def test_the_first_candidate_fits_into_a_program(
    offer_for: Callable[..., Suggestions], text: str, data: st.DataObject
) -> None:
    part = text[: data.draw(st.integers(text.index("(") + 1, len(text)))]
    first = offer_for(part, kind="python")
    if first.candidates:
        taken = offer_for(put(part, first.candidates[0]), kind="python")
        assert {fix.about for fix in taken.fixes} <= OK, (part, first.candidates[0], taken.fixes)


@QUICK
@given(text=st.sampled_from(COMMANDS), data=st.data())
def test_the_first_candidate_fits_into_a_command(
    offer_for: Callable[..., Suggestions], text: str, data: st.DataObject
) -> None:
    part = text[: data.draw(st.integers(1, len(text)))]
    first = offer_for(part)
    if first.candidates:
        assert offer_for(put(part, first.candidates[0])).fixes == first.fixes


SLIPS: list[tuple[str, str]] = [
    ('"model"', "'model'"), ('"model"', "model"), ('"model"', '"modle"'), ('"model":', '"model" ='),
    ('"model":', '"model"：'), ('"prompt"', '"promt"'), ('"max_tokens": 20', '"max_token": "20"'),
    ("0.7", '"0.7"'), ("0.7", "7"), ("true", "True"), ("true", '"true"'), ("true", "1"), ("0.7, ", "0.7 "),
    ("true}", "true,}"), ("true}", "true"), ('"max_tokens": 20', '"max_tokens": 20.0'),
    ('"Once upon"', "“Once upon”"),
    ('"poems"', '"poem"'), ('"prompt": "Once upon", ', ""), ("true}", 'true, "nonsense_zzz": [1]}'),
    ("true}", 'true, "suffix": "x"}'), ('"Once upon",', '"Once upon"'), (', "max', ',, "max'),
]  # fmt: skip


@QUICK
@given(slips=st.lists(st.sampled_from(SLIPS), min_size=1, max_size=3, unique_by=lambda slip: slip[0]))
def test_bodies_with_slips_are_set_right(
    offer_for: Callable[..., Suggestions], server_takes: Takes, slips: list[tuple[str, str]]
) -> None:
    text = BODIES[0]
    for right, wrong in slips:
        text = text.replace(right, wrong, 1)
    offer = offer_for(text)
    body = json.loads(offer.fixed)
    server_takes("/v1/completions", body)
    assert body["model"] == "poems"
    assert body["max_tokens"] == 20
    assert body.get("stream", True) is True
