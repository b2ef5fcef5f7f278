"""The table of codes, its pages, and the envelope."""

from __future__ import annotations

import json
from html import escape

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.serve.gateway.errors import CODES, ApiError, envelope, plain

EXAMPLES = [code for code, entry in CODES.items() if entry.wrong]


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page_that_the_envelope_names(http: httpx.Client, code: str) -> None:
    place = envelope(ApiError(code, "x"), "id")["error"]["doc_url"]
    page = http.get(place)
    assert page.status_code == 200
    assert escape(CODES[code].meaning) in page.text
    assert escape(CODES[code].remedy) in page.text
    assert f'href="{place}"' in http.get("/errors").text


def test_the_page_of_an_unknown_code_is_not_found(http: httpx.Client) -> None:
    assert http.get("/errors/nothing").json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_examples_of_a_page_are_true(http: httpx.Client, code: str) -> None:
    entry = CODES[code]
    headers = {"content-type": "application/json"}
    wrong = http.post(entry.route, content=entry.wrong.replace("MODEL", "tiny"), headers=headers)
    right = http.post(entry.route, content=entry.right.replace("MODEL", "tiny"), headers=headers)
    assert wrong.json()["error"]["code"] == code
    assert right.status_code == 200


def test_a_time_to_come_back_is_whole_seconds_and_at_least_one() -> None:
    assert ApiError("queue_full", "x", retry_after_s=0.2).headers == {"retry-after": "1"}
    assert ApiError("queue_full", "x", retry_after_s=1.2).headers == {"retry-after": "2"}
    assert ApiError("queue_full", "x").headers == {}


@given(text=st.text())
def test_a_message_has_no_characters_that_move_the_cursor(text: str) -> None:
    assert not any(ord(c) < 32 or c in "\u202e\u2028\x7f" for c in plain(text))


@given(message=st.text(), param=st.text())
def test_an_envelope_is_one_line_of_json(message: str, param: str) -> None:
    told = json.dumps(envelope(ApiError("invalid_value", message, param=param), "id"), ensure_ascii=False)
    assert "\n" not in told
    assert told.encode("utf-8")
