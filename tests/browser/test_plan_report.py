"""The report of a plan, in a real Chromium: it opens from disk, alone, in both colours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from windlass.plan.report.page import report_html

CHROMIUM = shutil.which("chromium")
SAMPLE = Path(__file__).parent.parent / "plan" / "a_plan.json"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1100])
def test_the_report_opens_alone_and_fits_the_window(
    browser: Browser, tmp_path: Path, artifacts: Path, scheme: str, width: int
) -> None:
    file = tmp_path / "plan.html"
    file.write_text(report_html(json.loads(SAMPLE.read_text())), encoding="utf-8")
    requested, complaints = [], []
    with browser.new_context(
        color_scheme="dark" if scheme == "dark" else "light",
        offline=True,
        viewport={"width": width, "height": 900},
    ) as context:
        page = context.new_page()
        page.on("request", lambda request: requested.append(request.url))
        page.on(
            "console", lambda message: complaints.append(message.text) if message.type == "error" else None
        )
        page.goto(file.as_uri())
        pictures = page.locator("svg")
        assert pictures.count() == 4
        assert all((pictures.nth(n).bounding_box() or {"height": 0})["height"] > 50 for n in range(4))
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.screenshot(path=artifacts / f"plan-report-{scheme}-{width}.png", full_page=True)
    assert requested == [file.as_uri()]
    assert complaints == []
