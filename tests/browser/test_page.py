"""The shell of the page, in a real Chromium: sign-in, languages, colours, outages, expired keys."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from windlass.serve.records.audit_log import Actor

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]

MAX_BYTES = 100_000


def sign_in(page: Page, key: str) -> None:
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def expect_views(page: Page, *names: str) -> None:
    expect(page.locator("#nav a")).to_have_text(names)


def test_the_first_view_is_small_and_logs_no_error(gateway: Any, opened: Any, complaints: list[str]) -> None:
    with opened("about:blank") as page:
        sizes: list[int] = []
        page.on("requestfinished", lambda request: sizes.append(_transferred(request.sizes())))
        page.goto(gateway.url)
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert 0 < sum(sizes) < MAX_BYTES
    assert complaints == []


def _transferred(sizes: Any) -> int:
    return int(sizes["responseBodySize"] + sizes["responseHeadersSize"])


def test_the_language_is_that_of_the_browser_until_another_is_chosen_and_remembered(
    gateway: Any, opened: Any, complaints: list[str]
) -> None:
    with opened(gateway.url, locale="zh-CN") as page:
        expect(page.get_by_role("button", name="发送")).to_be_visible()
        expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
        page.get_by_role("button", name="English").click()
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        page.reload()
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        expect(page.locator("html")).to_have_attribute("lang", "en")
    assert complaints == []


def test_colours_follow_the_system_until_others_are_chosen(gateway: Any, opened: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with opened(gateway.url, color_scheme="dark") as page:
        dark = page.evaluate(ground)
        page.get_by_role("button", name="Colours: as the system").click()
        expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
        light = page.evaluate(ground)
        assert light != dark
        page.reload()
        assert page.evaluate(ground) == light
        page.get_by_role("button", name="Colours: light").click()
        page.get_by_role("button", name="Colours: dark").click()
        expect(page.get_by_role("button", name="Colours: as the system")).to_be_visible()
        assert page.evaluate("localStorage.length") == 0


def test_every_word_exists_in_both_languages(gateway: Any, opened: Any) -> None:
    with opened(gateway.url) as page:
        alone = page.evaluate(
            """async () => {
                const names = ["play", "api", "errors", "runs", "plan", "models", "service"];
                const { shell } = await import("/page/words.js");
                const tables = [shell];
                for (const name of names) {
                    const view = await import(`/page/view-${name}.js`).catch(() => null);
                    if (view) tables.push(view.words);
                }
                const explains = (key) => key.startsWith("about_");  // English ones are the server's own
                return tables.flatMap(({ en, zh }) => [
                    ...Object.keys(en).filter((key) => !(key in zh)),
                    ...Object.keys(zh).filter((key) => !(key in en) && !explains(key)),
                ]);
            }"""
        )
        assert alone == []


def test_the_keyboard_reaches_everything_in_a_sensible_order(gateway: Any, opened: Any) -> None:
    with opened(gateway.url) as page:
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        order = []
        for _ in range(10):
            page.keyboard.press("Tab")
            order.append(
                page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
            )
        names = ["Playground", "API", "Errors", "Runs", "Planner", "Models", "Service"]
        assert order == ["brand", *names, "theme", "language"]
        page.get_by_role("link", name="Skip to the content").focus()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()


def test_the_open_view_is_marked_and_its_title_is_the_documents(gateway: Any, opened: Any) -> None:
    with opened(f"{gateway.url}#/errors") as page:
        expect(page.locator("#nav a[aria-current=page]")).to_have_text("Errors")
        expect(page).to_have_title("Errors · Windlass")
        page.get_by_role("navigation", name="Views").get_by_role("link", name="API").click()
        expect(page).to_have_title("API · Windlass")
        page.goto(f"{gateway.url}#/nowhere")
        expect(page.get_by_role("heading")).to_contain_text("no such view")


def test_a_key_signs_this_tab_in_until_sign_out(
    guarded: Any, given_keys: Any, opened: Any, complaints: list[str], artifacts: Path
) -> None:
    with opened(guarded.url) as page:
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        expect(page.get_by_label("Key")).to_be_focused()
        expect_views(page, "Errors")
        page.screenshot(path=artifacts / "sign-in-en.png")
        sign_in(page, given_keys.tokens["user"])
        expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
        expect_views(page, "Playground", "API", "Errors")
        page.reload()
        expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.reload()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert page.evaluate("document.cookie + sessionStorage.getItem('windlass-key')") == "null"
    assert complaints == []


def test_a_view_that_a_key_may_not_see_says_so_when_it_is_opened_by_address(
    guarded: Any, given_keys: Any, opened: Any
) -> None:
    with opened(f"{guarded.url}#/service", key=given_keys.tokens["user"]) as page:
        expect(page.get_by_role("alert").filter(has_text="may not see")).to_contain_text("admin")
        expect_views(page, "Playground", "API", "Errors")
        page.get_by_role("button", name="中文").click()
        expect(page.get_by_role("alert").filter(has_text="无权")).to_be_visible()


def test_the_key_of_an_administrator_sees_every_view(guarded: Any, given_keys: Any, opened: Any) -> None:
    with opened(guarded.url, key=given_keys.tokens["admin"]) as page:
        expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
        expect_views(page, "Playground", "API", "Errors", "Runs", "Planner", "Models", "Service")


@pytest.mark.parametrize(
    ("name", "words"),
    [("revoked", "was revoked"), ("metrics", "lacks the scope"), (None, "Paste a key first")],
)
def test_sign_in_says_why_a_key_is_refused(
    guarded: Any, given_keys: Any, opened: Any, name: str | None, words: str
) -> None:
    with opened(guarded.url) as page:
        sign_in(page, given_keys.tokens[name] if name else " ")
        expect(page.get_by_role("alert").filter(has_text=words)).to_be_visible()
        expect(page.get_by_label("Key")).to_be_focused()


def test_a_key_that_is_revoked_in_use_leads_back_to_the_sign_in_form(
    guarded: Any, given_keys: Any, opened: Any
) -> None:
    key, token = given_keys.keys.make("visitor", Actor("", "the tests"), scopes=["use"])
    with opened(guarded.url, key=token) as page:
        page.get_by_role("textbox", name="Prompt").fill("the lazy dog")
        given_keys.keys.revoke(key.id, Actor("", "the tests"))
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("alert").filter(has_text="was revoked")).to_be_visible()
        page.get_by_role("button", name="中文").click()
        expect(page.get_by_role("alert").filter(has_text="已被吊销")).to_be_visible()


@pytest.mark.parametrize(
    ("locale", "words", "again"),
    [("en-GB", "Internal error of the server", "Try again"), ("zh-CN", "服务器内部错误", "重试")],
)
def test_an_internal_error_is_shown_with_the_request_id_and_can_be_retried(
    gateway: Any, opened: Any, monkeypatch: pytest.MonkeyPatch, locale: str, words: str, again: str
) -> None:
    def fail() -> None:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr(gateway.service, "endpoints", fail)
        with opened(gateway.url, locale=locale) as page:
            expect(page.locator("main [role=alert]")).to_contain_text(words)
            expect(page.locator("main [role=alert] code")).to_have_text(re.compile("^[0-9a-f]{16,}$"))
            patch.undo()
            page.get_by_role("button", name=again).click()
            expect(page.locator("#prompt")).to_be_visible()


def test_an_outage_of_the_server_and_its_end_are_shown(gateway: Any, opened: Any) -> None:
    with opened(gateway.url) as page:
        page.get_by_role("textbox", name="Prompt").fill("the lazy dog")
        page.clock.install()
        page.context.set_offline(True)
        page.get_by_role("button", name="Send").click()
        expect(page.locator("#outage")).to_contain_text("does not answer")
        expect(page.get_by_role("textbox", name="Prompt")).to_have_value("the lazy dog")
        page.get_by_role("button", name="中文").click()
        expect(page.locator("#outage")).to_contain_text("没有响应")
        page.context.set_offline(False)
        page.clock.fast_forward(4000)
        expect(page.locator("#outage")).to_be_hidden()
        page.clock.fast_forward(1000)
        expect(page.locator("#live")).to_have_text("服务器已恢复。")


def test_a_view_that_cannot_be_fetched_says_so_and_can_be_retried(
    start_gateway: Any, engine: Any, opened: Any
) -> None:
    gateway = start_gateway()
    gateway.wait_until("/readyz", 200)
    with opened(gateway.url) as page:
        expect(page.get_by_role("textbox", name="Prompt")).to_be_visible()
        gateway.stop()
        page.get_by_role("navigation", name="Views").get_by_role("link", name="Errors").click()
        expect(page.locator("#outage")).to_be_visible()
        expect(page.locator("main").get_by_role("button", name="Try again")).to_be_visible()


@pytest.mark.parametrize("locale", ["en-GB", "zh-CN"])
def test_the_sign_in_form_is_accessible(
    guarded: Any, opened: Any, axe: Callable[[Page], None], artifacts: Path, locale: str
) -> None:
    with opened(guarded.url, locale=locale) as page:
        expect(page.locator("#key")).to_be_visible()
        axe(page)
        page.screenshot(path=artifacts / f"sign-in-{locale[:2]}.png")


@pytest.mark.parametrize("name", ["play", "api", "errors", "errors/invalid_value"])
def test_a_phone_shows_every_view_without_scrolling_sideways(
    gateway: Any, opened: Any, artifacts: Path, name: str
) -> None:
    with opened(f"{gateway.url}#/{name}", viewport={"width": 360, "height": 740}) as page:
        expect(page.locator("main h1").first).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page.screenshot(path=artifacts / f"phone-{name.partition('/')[0]}.png")
