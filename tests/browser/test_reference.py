"""The API reference, its request editor and the errors, in a real Chromium."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from playwright.sync_api import Page, expect

from windlass.http.errors import CODES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]

LOCALES = pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])


def test_every_operation_of_the_document_is_listed_with_its_fields_and_errors(
    opened: Any, gateway: Any, complaints: list[str]
) -> None:
    with opened(f"{gateway.url}#/api") as page:
        expect(page.locator(".menu a").first).to_be_visible()
        document = page.evaluate("fetch('/openapi.json').then((each) => each.json())")
        count = sum(len(methods) for methods in document["paths"].values())
        expect(page.locator(".menu a")).to_have_count(count)
        fields = document["components"]["schemas"]["CompletionRequest"]["properties"]
        shown = page.locator(".operation").text_content()
        assert all(name in shown for name in fields)
        expect(page.locator(".operation a[href='#/errors/context_length_exceeded']")).to_be_visible()
        page.get_by_label("Find an operation").fill("dry")
        expect(page.locator(".menu a")).to_have_count(1)
        page.locator(".menu a").click()
        expect(page.locator("#operation")).to_contain_text("/v1/dry-run")
    assert complaints == []


def test_every_operation_can_be_opened(opened: Any, gateway: Any, complaints: list[str]) -> None:
    with opened(f"{gateway.url}#/api") as page:
        expect(page.locator(".menu a").first).to_be_visible()
        for place in page.locator(".menu a").evaluate_all("all => all.map((each) => each.hash)"):
            page.evaluate("(place) => { location.hash = place; }", place)
            path = re.sub(r"^#/api/[a-z]+", "", unquote(place))
            page.wait_for_function(
                """(path) => document.getElementById("operation")?.textContent.endsWith(path)
                    && document.querySelector(".operation pre")?.textContent.includes("import")""",
                arg=path,
            )
    assert complaints == []


def test_a_request_is_really_sent_and_its_answer_shown(
    opened: Any, gateway: Any, engine: Any, complaints: list[str]
) -> None:
    with opened(f"{gateway.url}#/api/post/v1/completions") as page:
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#try-status")).to_have_text("200 OK")
        expect(page.locator(".operation form pre")).to_contain_text('"text_completion"')
        expect(page.locator(".operation form dl")).to_contain_text("x-request-id")
    assert complaints == []


def test_a_refused_request_leads_to_its_explanation_and_is_corrected_by_a_click(
    opened: Any, gateway: Any, engine: Any
) -> None:
    with opened(f"{gateway.url}#/api/post/v1/completions") as page:
        editor = page.get_by_label("Request body (JSON)")
        editor.fill('{"model": "tiny", "prompt": "dog", "temperature": 2.5}')
        page.keyboard.press("Control+Enter")
        expect(page.locator("#try-status")).to_contain_text("400")
        page.get_by_role("button", name="Use the corrected body").click()
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#try-status")).to_have_text("200 OK")
        editor.fill("{")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#try-status")).to_contain_text("400")
        page.get_by_role("link", name="What “invalid_json” means").click()
        expect(page.get_by_role("heading", name="invalid_json")).to_be_visible()


def test_a_request_that_changes_the_service_is_sent_by_the_second_click(
    opened: Any, guarded: Any, given_keys: Any
) -> None:
    with opened(f"{guarded.url}#/api/post/admin/tenants", key=given_keys.tokens["admin"]) as page:
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.method + request.url))
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("button", name="Press again to send")).to_be_visible()
        assert not any("tenants" in each for each in sent)
        page.get_by_role("button", name="Press again to send").click()
        expect(page.locator("#try-status")).to_be_visible()


def test_a_key_sees_only_the_operations_that_it_may_call(opened: Any, guarded: Any, given_keys: Any) -> None:
    with opened(f"{guarded.url}#/api", key=given_keys.tokens["user"]) as page:
        expect(page.locator(".menu a").first).to_be_visible()
        assert "/admin" not in page.locator(".menu").inner_text()


def test_completions_are_offered_while_typing_and_taken_by_the_keyboard(
    opened: Any, gateway: Any, complaints: list[str], artifacts: Path
) -> None:
    with opened(f"{gateway.url}#/api/post/v1/completions") as page:
        editor = page.get_by_label("Request body (JSON)")
        expect(editor).to_be_visible()
        editor.fill("")
        editor.press_sequentially('{"model": "tiny@3", "prompt": "dog", "')
        offered = page.get_by_role("option").first
        expect(offered).not_to_contain_text("temperature")
        page.keyboard.insert_text("temp")  # at once: what is offered for "te" could not be taken any more
        expect(offered).to_contain_text("temperature")
        expect(editor).to_have_attribute("aria-activedescendant", "offer-1-0")
        page.screenshot(path=artifacts / "api-editor.png")
        page.keyboard.press("Tab")
        expect(editor).to_have_value(re.compile('"temperature"'))
        editor.fill('{"model": "tiny@3", "prompt": "dog", "temperature": "0.5"}')
        page.get_by_role("button", name="Fix:").first.click()
        expect(editor).to_have_value(re.compile('"temperature": 0.5'))
    assert complaints == []


@pytest.mark.parametrize(("locale", "scheme"), [("en-GB", "light"), ("zh-CN", "dark")])
def test_the_reference_is_accessible(
    opened: Any, gateway: Any, axe: Callable[[Page], None], artifacts: Path, locale: str, scheme: str
) -> None:
    with opened(f"{gateway.url}#/api/post/v1/chat/completions", locale=locale, color_scheme=scheme) as page:
        expect(page.locator("#operation")).to_be_visible()
        page.locator(".operation button.primary").click()
        expect(page.locator("#try-status")).to_have_text("200 OK")
        page.screenshot(path=artifacts / f"api-{locale[:2]}-{scheme}.png")
        axe(page)


@LOCALES
def test_errors_are_found_by_their_words_and_explained(
    opened: Any,
    gateway: Any,
    complaints: list[str],
    axe: Callable[[Page], None],
    artifacts: Path,
    locale: str,
) -> None:
    with opened(f"{gateway.url}#/errors", locale=locale) as page:
        expect(page.locator(".errors td a")).to_have_count(len(CODES))
        axe(page)
        page.screenshot(path=artifacts / f"errors-{locale[:2]}.png")
        page.locator("input[type=search]").fill("outside range" if locale == "en-GB" else "超出范围")
        expect(page.locator(".errors td a")).to_have_count(1)
        page.locator("input[type=search]").fill("invalid_v")
        page.locator(".errors td a").click()
        expect(page.get_by_role("heading", name="invalid_value")).to_be_visible()
        expect(page.locator("mark").first).to_have_text(".5")
        axe(page)
        page.screenshot(path=artifacts / f"error-{locale[:2]}.png")
        page.locator("main section button").last.click()
        expect(page.locator("textarea.editor")).to_have_value(
            '{"model": "tiny@3", "prompt": "dog", "temperature": 2}'
        )
    assert complaints == []


def test_errors_are_explained_without_a_key(opened: Any, guarded: Any, complaints: list[str]) -> None:
    with opened(f"{guarded.url}#/errors/unauthorized") as page:
        expect(page.get_by_role("heading", name="unauthorized")).to_be_visible()
    assert complaints == []


@LOCALES
def test_the_page_of_a_code_is_complete_alone_in_both_languages(
    opened: Any,
    guarded: Any,
    complaints: list[str],
    axe: Callable[[Page], None],
    artifacts: Path,
    locale: str,
) -> None:
    with opened(f"{guarded.url}/errors/invalid_value", locale=locale) as page:
        words = {"en-GB": "What to do", "zh-CN": "怎么办"}
        expect(page.get_by_role("heading", name=words[locale])).to_be_visible()
        axe(page)
        page.screenshot(path=artifacts / f"error-page-{locale[:2]}.png")
        page.get_by_role("link", name="English" if locale == "zh-CN" else "中文").click()
        other = words["en-GB" if locale == "zh-CN" else "zh-CN"]
        expect(page.get_by_role("heading", name=other)).to_be_visible()
    assert complaints == []
