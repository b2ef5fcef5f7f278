"""The playground, in a real Chromium: type, press, watch, compare, look closely, take the code away."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.records.state import open_state
from windlass.spec.limits import Limits, ServeLimits
from windlass.spec.protocol.wire import Generate
from windlass.spec.serve import Price
from windlass.store.database import sqlite_url

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]


@pytest.fixture
def page(opened: Any, gateway: Any) -> Iterator[Page]:
    with opened(gateway.url) as page:
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        yield page


@pytest.fixture
def impatient_page(opened: Any, impatient: Any) -> Iterator[Page]:
    """The page of a gateway that does not wait for a lost engine."""
    with opened(impatient.url) as page:
        expect(page.get_by_role("button", name="Send")).to_be_visible()
        yield page


def ask(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(text)
    page.keyboard.press("Enter")


def test_two_actions_lead_to_a_streamed_answer_and_a_third_to_running_python(
    page: Page, engine: Any, complaints: list[str]
) -> None:
    engine.held = {3}
    page.get_by_role("button", name="Once upon a time").click()
    page.clock.install(time=0)
    page.clock.pause_at(1000)  # however long the engine is held, the page does not call it slow
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.locator(".status")).to_contain_text("Writing")
    page.clock.resume()
    engine.release()
    expect(page.locator(".status")).to_contain_text("tokens in")
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    code = page.evaluate("navigator.clipboard.readText()")
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "Once upon a time" in ran.stdout
    first, second = engine.of(Generate)
    assert (first.tokens, first.max_tokens) == (second.tokens, second.max_tokens)
    assert complaints == []


def test_a_running_answer_is_stopped_by_the_button_and_cancelled_in_the_engine(
    page: Page, engine: Any, complaints: list[str]
) -> None:
    engine.held = {3}
    ask(page, "the lazy dog")
    expect(page.locator(".answer")).to_contain_text("the lazy dogthe lazy dog")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".status")).to_contain_text("Stopped after 3 tokens")
    engine.wait_for(lambda received: len(received) == 2)
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert complaints == []


@pytest.mark.parametrize(
    ("locale", "words"), [("en-GB", "No token has arrived for"), ("zh-CN", "没有新内容")]
)
def test_a_slow_stream_is_announced_on_the_page_and_to_screen_readers(
    opened: Any, gateway: Any, engine: Any, locale: str, words: str
) -> None:
    engine.held = {2}
    with opened(gateway.url, locale=locale) as page:
        page.locator("#prompt").fill("the lazy dog")
        page.clock.install()
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_contain_text("the lazy dogthe")
        page.clock.fast_forward(6000)
        expect(page.locator(".status")).to_contain_text(words)
        page.clock.fast_forward(1000)
        expect(page.locator("#live")).to_contain_text(words)


def test_a_conversation_keeps_its_turns_and_its_system_message(
    page: Page, engine: Any, complaints: list[str]
) -> None:
    engine.writes = lambda ask: [*ask.tokens[-4:-1], 0]
    page.get_by_role("radio", name="Chat").check(force=True)
    page.get_by_label("System message").fill("machine learning")
    for prompt in ("the quick fox", "is machine learning fun"):
        ask(page, prompt)
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        expect(page.locator(".status")).to_contain_text("tokens in")
    expect(page.locator(".answer .turn")).to_have_count(4)
    assert len(engine.of(Generate)) == 2
    assert len(engine.of(Generate)[1].tokens) > len(engine.of(Generate)[0].tokens)
    page.get_by_role("button", name="中文").click()
    expect(page.locator(".answer .turn")).to_have_count(4)
    assert complaints == []


def test_a_missing_engine_is_reported_in_plain_words(
    impatient_page: Page, engine: Any, impatient: Any
) -> None:
    page = impatient_page
    engine.stop()
    impatient.wait_until("/readyz", 503)
    ask(page, "the lazy dog")
    expect(page.locator(".failure:visible")).to_contain_text("No engine is available")
    expect(page.locator(".failure:visible").get_by_role("link")).to_have_attribute(
        "href", "#/errors/engine_unavailable"
    )
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("the lazy dog")


def test_an_engine_that_dies_in_the_middle_leaves_the_text_and_says_so(
    impatient_page: Page, engine: Any
) -> None:
    page = impatient_page
    engine.dies_after = 3
    ask(page, "the lazy dog")
    expect(page.locator(".failure:visible")).to_be_visible()
    expect(page.locator(".answer")).to_contain_text("the lazy dogthe lazy dog")


def test_settings_have_the_range_default_and_description_of_the_openapi_document(
    page: Page, complaints: list[str]
) -> None:
    document = page.evaluate("fetch('/openapi.json').then((each) => each.json())")
    own = document["components"]["schemas"]["CompletionRequest"]["properties"]["top_p"]
    control = page.get_by_label("Top p")
    assert control.get_attribute("max") == str(own["anyOf"][0]["maximum"])
    assert control.get_attribute("placeholder") == str(own["x-default"])
    about = page.locator(f"#{control.get_attribute('aria-describedby')}")
    expect(about).to_contain_text(own["description"])
    expect(about).to_contain_text("> 0, ≤ 1")
    page.get_by_label("Temperature").fill("9")
    ask(page, "the lazy dog")
    expect(page.locator(".failure:visible")).to_contain_text("Temperature is out of range: 0 – 2")
    expect(page.get_by_label("Temperature")).to_be_focused()
    assert complaints == []


def test_tokens_are_counted_and_refusals_predicted_while_typing(page: Page, engine: Any) -> None:
    page.get_by_role("textbox", name="Prompt").fill("the lazy dog")
    expect(page.locator("#meter")).to_contain_text("of 128 tokens")
    page.get_by_label("Max tokens").fill("127")
    expect(page.locator("#meter")).to_contain_text("would refuse this request")
    assert engine.of(Generate) == []


def test_a_price_is_shown_while_typing(opened: Any, start_gateway: Any) -> None:
    gateway = start_gateway()
    gateway.wait_until("/readyz", 200)
    gateway.service.price = Price(read=10, write=10_000, currency="EUR")
    with opened(gateway.url) as page:
        page.get_by_role("textbox", name="Prompt").fill("the lazy dog")
        expect(page.locator("#meter")).to_contain_text("costs at most €0.6")


def test_time_and_remaining_quota_are_shown_before_sending(
    opened: Any, start_gateway: Any, engine: Any, tmp_path: Path
) -> None:
    gateway = start_gateway()
    service, state = gateway.service, open_state(sqlite_url(tmp_path / "service.db"))
    limits = ServeLimits(all=Limits(tokens_per_day=1000))
    service.admission = AdmissionController(
        limits, state, service.fleet, service.metrics, holder="test", queue=4
    )
    gateway.wait_until("/readyz", 200)
    with opened(gateway.url) as page:
        page.get_by_role("textbox", name="Prompt").fill("the lazy dog")
        expect(page.locator("#meter")).to_contain_text("first token after about")
        expect(page.locator("#meter")).to_contain_text("leaves 93.3% of today’s tokens")


def test_a_focused_token_shows_its_probability_and_its_alternatives(
    page: Page, complaints: list[str], axe: Callable[[Page], None], artifacts: Path
) -> None:
    page.get_by_label("Show probabilities").check()
    page.get_by_label("Max tokens").fill("12")
    ask(page, "the lazy dog")
    expect(page.locator(".status")).to_contain_text("12 tokens in")
    page.locator(".token").nth(2).hover()
    expect(page.locator(".lens")).to_contain_text("78% likely")
    expect(page.locator(".lens")).to_contain_text("Alternatives:")
    page.locator(".token").nth(2).focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token").nth(3)).to_be_focused()
    expect(page.locator(".token").nth(3)).to_have_attribute("aria-selected", "true")
    page.screenshot(path=artifacts / "play-logprobs.png")
    axe(page)
    assert complaints == []


def test_two_models_answer_one_prompt_side_by_side(
    opened: Any, start_gateway: Any, engine: Any, complaints: list[str], artifacts: Path
) -> None:
    gateway = start_gateway(adapters=["poet"])
    gateway.wait_until("/readyz", 200)
    with opened(gateway.url) as page:
        page.get_by_role("button", name="Compare two").click()
        page.get_by_label("Compare with").select_option("tiny@3:poet")
        ask(page, "the quick fox")
        expect(page.locator(".status").nth(0)).to_contain_text("tokens in")
        expect(page.locator(".status").nth(1)).to_contain_text("tokens in")
        page.screenshot(path=artifacts / "play-compare.png")
    first, second = engine.of(Generate)
    assert {first.adapter, second.adapter} == {"", "poet"}
    assert first.tokens == second.tokens
    assert complaints == []


def test_the_request_is_shared_as_curl_without_the_key(
    opened: Any, guarded: Any, given_keys: Any, engine: Any
) -> None:
    with opened(guarded.url, key=given_keys.tokens["user"]) as page:
        page.get_by_role("textbox", name="Prompt").fill("it's")
        page.get_by_label("Seed").fill("7")
        page.get_by_role("tab", name="curl").click()
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        command = page.evaluate("navigator.clipboard.readText()")
    assert "$WINDLASS_KEY" in command
    assert given_keys.tokens["user"] not in command
    body = json.loads(command.partition(" -d '")[2][:-1].replace("'\\''", "'"))
    assert (body["prompt"], body["seed"], body["model"]) == ("it's", 7, "tiny@3")


RUNNERS = {
    "curl": ("sh", "sh"),
    "Python": (sys.executable, "py"),
    "JavaScript": ("node", "mjs"),
    "Java": ("java", "java"),
}
"""What runs a file of each language, and how such files end."""


@pytest.mark.parametrize(
    ("mode", "logprobs", "names"),
    [
        ("Completion", False, ["curl", "Python", "JavaScript", "Java"]),
        ("Chat", True, ["Python", "JavaScript"]),
    ],
)
def test_the_code_runs_in_every_installed_language(
    page: Page, engine: Any, tmp_path: Path, mode: str, logprobs: bool, names: list[str]
) -> None:
    engine.stop_after = 4
    page.get_by_role("radio", name=mode).check(force=True)
    page.get_by_label("Show probabilities").set_checked(logprobs)
    page.get_by_role("textbox", name="Prompt").fill('the "lazy"\n\\dog\\ 春花秋月')
    page.get_by_label("Stop texts").fill("quick'\nbrown")
    for name in names:
        command, suffix = RUNNERS[name]
        if shutil.which(command) is None:
            continue
        page.get_by_role("tab", name=name, exact=True).click()
        file = tmp_path / f"Ask.{suffix}"
        file.write_text(page.locator(".share pre").inner_text(), encoding="utf-8")
        ran = subprocess.run(
            [command, str(file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, (name, ran.stderr)
        assert ran.stdout.strip(), name
    requests = engine.of(Generate)
    assert len(requests) >= 2
    assert all(each.tokens == requests[0].tokens for each in requests)


@pytest.mark.parametrize(("locale", "scheme"), [("en-GB", "light"), ("zh-CN", "dark")])
def test_the_playground_is_accessible(
    opened: Any, gateway: Any, axe: Callable[[Page], None], artifacts: Path, locale: str, scheme: str
) -> None:
    with opened(gateway.url, locale=locale, color_scheme=scheme) as page:
        page.locator("#prompt").fill("the quick brown fox jumps over the lazy dog. 春花秋月何时了。 ")
        page.keyboard.press("Enter")
        expect(page.locator(".status")).not_to_be_empty()
        expect(page.locator("#send")).to_be_enabled()
        expect(page.locator("#meter")).not_to_be_empty()
        page.screenshot(path=artifacts / f"play-{locale[:2]}-{scheme}.png", full_page=True)
        axe(page)
