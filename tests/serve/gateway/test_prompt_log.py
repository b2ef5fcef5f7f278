"""Prompts are stored only if the operator enables it, without personal data, and for a limited time."""

from __future__ import annotations

import json
import stat
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.caller import USE, Caller
from windlass.serve.gateway.observe.prompt_log import PromptLog, expired, prompts_of
from windlass.spec.protocol.wire import Embed, Generate, Work

ADA = Caller(key="key_1", tenant="acme", scopes=frozenset({USE}))
TEXTS = {1: "mail ada@example.com the key wlk_" + "k" * 43, 2: "春花\nsecond line"}


def decode(tokens: list[int]) -> str:
    return "".join(TEXTS[token] for token in tokens)


def generate(tokens: list[int]) -> Generate:
    return Generate(id="r", tokens=tokens, max_tokens=1, model="poet@2")


def kept(folder: Path, requests: list[Work], *, redacted: bool) -> list[dict[str, str]]:
    log = PromptLog(folder, redacted=redacted, keep_s=86400.0)
    log.put("req-1", ADA, requests, decode)
    log.close()
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_a_prompt_is_kept_without_personal_data(tmp_path: Path) -> None:
    first, second = kept(tmp_path / "log", [generate([1]), generate([2])], redacted=True)
    assert first["prompt"] == "mail [email] the key [key]"
    assert second["prompt"] == TEXTS[2]
    assert (first["id"], first["key"], first["tenant"], first["model"]) == (
        "req-1",
        "key_1",
        "acme",
        "poet@2",
    )


def test_a_prompt_that_is_kept_whole_still_has_no_key(tmp_path: Path) -> None:
    (only,) = kept(tmp_path, [generate([1])], redacted=False)
    assert only["prompt"] == "mail ada@example.com the key [key]"


def test_the_files_are_their_owners_alone(tmp_path: Path) -> None:
    kept(tmp_path / "log", [generate([1])], redacted=True)
    (file,) = (tmp_path / "log").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700


def test_answers_to_one_prompt_keep_it_once_and_inputs_each() -> None:
    tokens = [1, 2]
    assert prompts_of([generate(tokens), generate(tokens)]) == [tokens]
    assert prompts_of([Embed(id="e", inputs=[[1], [2]])]) == [[1], [2]]


def test_old_days_leave_and_nothing_else_does(tmp_path: Path) -> None:
    now = datetime.fromtimestamp(time.time(), UTC)
    old, young = (f"prompts-{now - timedelta(days=days):%Y-%m-%d}.jsonl" for days in (3, 1))
    for name in (old, young, "notes.txt"):
        (tmp_path / name).write_text("")
    kept(tmp_path, [generate([2])], redacted=True)
    names = {path.name for path in tmp_path.iterdir()}
    assert old not in names
    assert {young, "notes.txt"} <= names


@given(st.integers(0, 400), st.integers(1, 300), st.integers(0, 86399))
def test_a_day_is_kept_until_all_of_it_is_old(age_days: int, keep_days: int, second: int) -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    name = f"prompts-{now - timedelta(days=age_days):%Y-%m-%d}.jsonl"
    assert bool(expired([name], now, 86400.0 * keep_days)) == (age_days > keep_days)


def test_a_directory_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="file"):
        PromptLog(tmp_path / "file" / "log", redacted=True, keep_s=1.0)


def test_a_gateway_keeps_the_prompts_that_it_let_in(tmp_path: Path, gateway: Any, http: httpx.Client) -> None:
    gateway.service.prompts = PromptLog(tmp_path, redacted=True, keep_s=86400.0)
    try:
        body = {"model": "tiny", "prompt": "the fox of ada@example.com", "max_tokens": 2, "n": 2}
        assert http.post("/v1/completions", json=body).status_code == 200
        assert http.post("/v1/completions", json=body | {"max_tokens": 0}).status_code == 400
        assert http.post("/v1/embeddings", json={"model": "tiny", "input": ["a dog"]}).status_code == 200
        gateway.service.prompts.close()
    finally:
        gateway.service.prompts = None
    (file,) = tmp_path.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == ["the fox of [email]", "a dog"]
