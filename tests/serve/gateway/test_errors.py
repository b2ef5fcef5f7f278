"""The table of error codes, its pages, and the envelope."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.http.errors import CODES, ApiError, envelope, plain
from windlass.serve.gateway.routes.error_pages import prose, texts

pytestmark = pytest.mark.slow

EXAMPLES = [code for code, entry in CODES.items() if entry.wrong]


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_page_that_the_envelope_names(http: httpx.Client, code: str) -> None:
    place = envelope(ApiError(code, "x"), "id")["error"]["doc_url"]
    page = http.get(place)
    assert page.status_code == 200
    assert prose(CODES[code].meaning) in page.text
    assert prose(CODES[code].remedy) in page.text
    assert f'href="{place}"' in http.get("/errors").text


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_reported_in_chinese_too(http: httpx.Client, code: str) -> None:
    text = texts("zh")[code]
    page = http.get(f"/errors/{code}", params={"lang": "zh"})
    assert prose(text.meaning) in page.text
    assert prose(text.remedy) in page.text
    assert 'lang="zh-CN"' in page.text
    assert text.meaning != CODES[code].meaning


def test_the_tables_of_both_languages_have_the_same_codes() -> None:
    folder = files("windlass.http")
    ours, theirs = (
        tomllib.loads((folder / name).read_text("utf-8")) for name in ("codes.toml", "codes.zh.toml")
    )
    assert set(theirs) == set(ours)
    assert all(set(entry) == {"meaning", "remedy"} for entry in theirs.values())


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        ("en-GB,en;q=0.9,zh;q=0.8", "en"),
        ("de, zh;q=0.3", "zh"),
        ("de", "en"),
        ("zh;q=0, en;q=0.1", "en"),
        (";;q=,q=zz", "en"),
    ],
)
def test_the_language_of_the_errors_is_the_one_that_is_preferred(
    http: httpx.Client, accepted: str, language: str
) -> None:
    headers = {"accept": "application/json", "accept-language": accepted}
    assert http.get("/errors", headers=headers).json()["language"] == language
    chosen = http.get("/errors", headers=headers, params={"lang": "zh"})
    assert chosen.json()["language"] == "zh"
    assert "Accept-Language" in chosen.headers["vary"]


def test_programs_get_the_codes_as_facts(http: httpx.Client) -> None:
    headers = {"accept": "application/json"}
    assert [each["code"] for each in http.get("/errors", headers=headers).json()["data"]] == list(CODES)
    (one,) = http.get("/errors/invalid_value", headers=headers).json()["data"]
    assert one["right"] == CODES["invalid_value"].right


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
    text = json.dumps(envelope(ApiError("invalid_value", message, param=param), "id"), ensure_ascii=False)
    assert "\n" not in text
    assert text.encode("utf-8")
