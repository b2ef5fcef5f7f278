"""The page, in a real Chromium: type, press, watch, stop, be told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from windlass.serve.records.chain import Actor
from windlass.spec.wire import Generate

CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def page(browser: Browser, gateway: Any, complaints: list[str]) -> Iterator[Page]:
    with browser.new_context(locale="en-GB", permissions=["clipboard-read", "clipboard-write"]) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        page.goto(gateway.url)
        expect(page.locator("#model")).to_contain_text("tiny@3")
        yield page


def test_a_prompt_is_typed_and_its_continuation_streams(
    page: Page, engine: Any, complaints: list[str], artifacts: Path
) -> None:
    engine.pause_s = 0.02
    page.get_by_label("Prompt").fill("the quick brown fox jumps over the lazy dog. 春花秋月何时了。 ")
    page.get_by_label("Most tokens").fill("90")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_enabled()
    expect(page.locator("#status")).to_contain_text("Writing")
    expect(page.locator("#status")).to_contain_text("90 tokens in")
    expect(page.locator("#answer")).to_contain_text("the quick brown fox jumps")
    page.screenshot(path=artifacts / "page-light.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=artifacts / "page-dark.png")
    assert complaints == []


def test_a_running_answer_is_stopped_by_the_button_and_cancelled_in_the_engine(
    page: Page, engine: Any, complaints: list[str]
) -> None:
    engine.held = {3}
    page.get_by_label("Prompt").fill("the lazy dog")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#answer")).to_contain_text("the lazy dogthe lazy dog")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#status")).to_contain_text("Stopped after 3 tokens")
    engine.wait_for(lambda received: len(received) == 2)
    expect(page.get_by_role("button", name="Run")).to_be_enabled()
    assert complaints == []


def test_a_conversation_keeps_its_turns(
    page: Page, engine: Any, complaints: list[str], artifacts: Path
) -> None:
    engine.writes = lambda ask: [*ask.tokens[-4:-1], 0]
    page.get_by_role("radio", name="Chat").check(force=True)
    for asked in ("the quick fox", "is machine learning fun"):
        page.get_by_label("Prompt").fill(asked)
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("button", name="Run")).to_be_enabled()
        expect(page.locator("#status")).to_contain_text("tokens in")
    expect(page.locator("#answer .turn")).to_have_count(4)
    page.set_viewport_size({"width": 380, "height": 760})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=artifacts / "page-phone.png")
    assert complaints == []


def test_an_engine_that_is_gone_is_told_in_plain_words(page: Page, engine: Any, gateway: Any) -> None:
    engine.stop()
    gateway.wait_until("/readyz", 503)
    page.get_by_label("Prompt").fill("the lazy dog")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("engine that computes the answers is not there")


def test_an_engine_that_dies_in_the_middle_leaves_the_text_and_says_so(page: Page, engine: Any) -> None:
    engine.dies_after = 3
    page.get_by_label("Prompt").fill("the lazy dog")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.locator("#answer")).to_contain_text("the lazy dogthe lazy dog")


def test_a_setting_out_of_range_is_told_and_focused(page: Page, complaints: list[str]) -> None:
    page.get_by_label("Prompt").fill("the lazy dog")
    page.get_by_label("Temperature").fill("9")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("alert")).to_contain_text("out of range")
    expect(page.get_by_label("Temperature")).to_be_focused()
    assert complaints == []


def test_the_request_is_copied_as_a_curl_command(page: Page, gateway: Any) -> None:
    page.get_by_label("Prompt").fill("it's")
    page.get_by_label("Seed").fill("7")
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.locator("#status")).to_contain_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert command.startswith(f"curl -N {gateway.url}/v1/completions ")
    body = json.loads(command.partition(" -d '")[2][:-1].replace("'\\''", "'"))
    assert (body["prompt"], body["seed"], body["model"]) == ("it's", 7, "tiny@3")


def test_chinese_is_chosen_by_the_browser_and_english_by_the_switch(
    browser: Browser, gateway: Any, artifacts: Path
) -> None:
    with browser.new_context(locale="zh-CN") as context:
        page = context.new_page()
        page.goto(gateway.url)
        expect(page.get_by_role("button", name="运行")).to_be_visible()
        assert page.evaluate("document.documentElement.lang") == "zh-CN"
        page.screenshot(path=artifacts / "page-chinese.png")
        page.get_by_role("button", name="English").click()
        expect(page.get_by_role("button", name="Run")).to_be_visible()
        page.get_by_role("button", name="中文").click()
        expect(page.get_by_role("button", name="运行")).to_be_visible()


def test_both_languages_have_all_words(page: Page) -> None:
    missing = page.evaluate(
        """async () => {
            const { choose, say } = await import("/page/words.js");
            const used = [...document.querySelectorAll("[data-word]")].map((each) => each.dataset.word);
            return ["en", "zh"].flatMap((tag) => { choose(tag); return used.filter((word) => !say(word)); });
        }"""
    )
    assert missing == []


def test_one_model_leaves_nothing_to_choose(page: Page) -> None:
    expect(page.locator("#models")).to_be_hidden()


def test_an_adapter_is_chosen_and_asked(browser: Browser, start_gateway: Any, engine: Any) -> None:
    gateway = start_gateway(adapters=["poet"])
    gateway.wait_until("/readyz", 200)
    with browser.new_context(locale="en-GB") as context:
        page = context.new_page()
        page.goto(gateway.url)
        page.locator("#models").select_option("tiny@3:poet")
        expect(page.locator("#model")).to_contain_text("tiny@3:poet")
        page.get_by_label("Prompt").fill("the fox")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#status")).to_contain_text("tokens in")
    (sent,) = engine.of(Generate)
    assert sent.adapter == "poet"


def test_the_page_is_reached_by_keyboard_in_a_sensible_order(page: Page) -> None:
    order = []
    for _ in range(8):
        page.keyboard.press("Tab")
        order.append(page.evaluate("document.activeElement.id || document.activeElement.name || 'skip'"))
    assert order == ["skip", "language", "mode", "answer", "prompt", "run", "clear", "curl"]


@pytest.fixture
def signed_out(browser: Browser, guarded: Any) -> Iterator[Page]:
    with browser.new_context(locale="en-GB", permissions=["clipboard-read", "clipboard-write"]) as context:
        page = context.new_page()
        page.goto(guarded.url)
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        yield page


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_key_opens_the_page_for_this_tab_until_it_signs_out(
    signed_out: Page, guarded: Any, given_keys: Any, artifacts: Path
) -> None:
    page = signed_out
    expect(page.get_by_label("Prompt")).to_be_hidden()
    page.screenshot(path=artifacts / "page-sign-in.png")
    sign_in(page, given_keys.tokens["user"])
    expect(page.locator("#model")).to_contain_text("tiny@3")
    page.get_by_label("Prompt").fill("the lazy dog")
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#status")).to_contain_text("tokens in")
    page.get_by_role("button", name="Copy as curl").click()
    expect(page.locator("#status")).to_contain_text("Copied")
    command = page.evaluate("navigator.clipboard.readText()")
    assert "$WINDLASS_KEY" in command
    assert given_keys.tokens["user"] not in command
    page.reload()
    expect(page.locator("#model")).to_contain_text("tiny@3")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Prompt")).to_be_hidden()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]


@pytest.mark.parametrize(
    ("name", "words"),
    [("revoked", "was revoked"), ("metrics", "lacks the scope"), (None, "Paste a key first")],
)
def test_a_key_that_does_not_open_is_told_why(
    signed_out: Page, given_keys: Any, name: str | None, words: str
) -> None:
    sign_in(signed_out, given_keys.tokens[name] if name else " ")
    expect(signed_out.get_by_role("alert")).to_contain_text(words)
    expect(signed_out.get_by_label("Key")).to_be_focused()


def test_a_key_that_is_revoked_in_between_leads_back_to_the_door(signed_out: Page, given_keys: Any) -> None:
    key, token = given_keys.keys.make("visitor", Actor("", "the tests"), scopes=["use"])
    sign_in(signed_out, token)
    signed_out.get_by_label("Prompt").fill("the lazy dog")
    given_keys.keys.revoke(key.id, Actor("", "the tests"))
    signed_out.get_by_role("button", name="Run").click()
    expect(signed_out.get_by_role("alert")).to_contain_text("was revoked")
    signed_out.get_by_role("button", name="中文").click()
    expect(signed_out.get_by_role("alert")).to_contain_text("已被吊销")


def test_links_that_need_a_key_show_what_they_lead_to(signed_out: Page, given_keys: Any) -> None:
    sign_in(signed_out, given_keys.tokens["admin"])
    expect(signed_out.locator("#model")).to_contain_text("tiny@3")
    with signed_out.context.expect_page() as opened:
        signed_out.get_by_role("link", name="Figures").click()
    expect(opened.value.locator("body")).to_contain_text("windlass_")
