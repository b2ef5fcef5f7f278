"""The gateway completes half-typed calls, from its own OpenAPI document and its models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass.serve.gateway.routes.complete_call import MAX_CHARS


def complete(http: httpx.Client, text: str, **more: Any) -> dict[str, Any]:
    reply = http.post("/v1/complete-call", json={"text": text, **more})
    assert reply.status_code == 200, reply.text
    reply: dict[str, Any] = reply.json()
    return reply


def test_served_models_are_offered(http: httpx.Client) -> None:
    reply = complete(http, '{"model": "ti')
    assert [each["text"] for each in reply["candidates"]] == ["tiny", "tiny@3"]
    assert reply["candidates"][0]["replace"] == [10, 13]
    assert reply["explains"]["name"] == "model"
    assert set(reply["call"]) == {"curl", "python", "javascript", "java", "json"}


def test_the_call_that_is_written_is_answered_by_the_same_gateway(http: httpx.Client) -> None:
    for text in (
        '{"prompt": "the quick", "max_token": "4',
        "curl X/v1/chat/completions -d '{\"mod",
        '{"input": "the',
    ):
        reply = complete(http, text)
        assert str(http.base_url).rstrip("/") in reply["call"]["python"] or "X/v1" in reply["call"]["curl"]
        reply = http.post(reply["path"], json=json.loads(reply["call"]["json"]))
        assert reply.status_code == 200, (text, reply.text)


def test_the_route_of_a_body_may_be_named(http: httpx.Client) -> None:
    reply = complete(http, '{"model": "tiny", ', path="/v1/tokenize")
    assert reply["path"] == "/v1/tokenize"
    assert {each["text"] for each in reply["candidates"]} == {"text", "messages", "special"}


def test_the_kind_may_be_named_and_the_cursor_may_stand_inside(http: httpx.Client) -> None:
    reply = complete(http, "client.completions.create(model='ti')", kind="python", cursor=34)
    assert reply["candidates"][0]["insert"] == '"tiny"'
    assert complete(http, "{", cursor=MAX_CHARS)["candidates"][0]["text"] == "model"


def test_a_key_is_needed_and_texts_have_a_bound(guarded: Any, given_keys: Any) -> None:
    ask = {"text": "{"}
    url = f"{guarded.url}/v1/complete-call"
    assert httpx.post(url, json=ask, timeout=60).status_code == 401
    assert httpx.post(url, json=ask, headers=given_keys.bearer("metrics"), timeout=60).status_code == 403
    assert httpx.post(url, json=ask, headers=given_keys.bearer("user"), timeout=60).status_code == 200
    long = {"text": "[" * (MAX_CHARS + 1)}
    assert httpx.post(url, json=long, headers=given_keys.bearer("user"), timeout=60).status_code == 400
    longest = {"text": "[" * MAX_CHARS}
    assert httpx.post(url, json=longest, headers=given_keys.bearer("user"), timeout=60).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("language", ["curl", "python", "javascript", "java"])
@pytest.mark.parametrize(
    "text", ['{"prompt": "it\'s \\"so\\" \\\\ 春", "n": 2', '{"messages": [], "stream": true']
)
def test_the_call_runs_in_every_language(
    guarded: Any, given_keys: Any, tmp_path: Path, language: str, text: str
) -> None:
    program = {"curl": "sh", "python": sys.executable, "javascript": "node", "java": "java"}[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    reply = httpx.post(
        f"{guarded.url}/v1/complete-call", json={"text": text}, headers=given_keys.bearer("user"), timeout=60
    )
    file = (
        tmp_path
        / {"curl": "call.sh", "python": "call.py", "javascript": "call.mjs", "java": "Call.java"}[language]
    )
    file.write_text(reply.json()["call"][language], "utf-8")
    environment = {**os.environ, "WINDLASS_KEY": given_keys.tokens["user"]}
    done = subprocess.run(
        [program, str(file)], capture_output=True, text=True, env=environment, check=True, timeout=120
    )
    assert '"choices"' in done.stdout, done.stdout + done.stderr
    assert ("[DONE]" in done.stdout) == ("stream" in text)
