import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from windlass.plan.cost.money import format_dollars
from windlass.plan.report.page import report_html
from windlass.plan.report.plots import deadline_svg, front_svg, memory_svg, timeline_svg
from windlass.spec.units import format_bytes, format_seconds

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def plan() -> dict[str, Any]:
    """A plan for 70 billion weights on 512 devices, as docs/formats/plan.md says."""
    return json.loads((Path(__file__).parent / "a_plan.json").read_text())  # type: ignore[no-any-return]


def unsolved(plan: dict[str, Any]) -> dict[str, Any]:
    fix = {"way": "recompute", "changes": {}, "seconds": None, "dollars": None, "loss": None}
    return plan | {
        "outcome": "no solution",
        "layouts": [],
        "front": [],
        "weighed": [],
        "by_devices": [],
        "explanation": [],
        "failures": None,
        "storage": None,
        "no_solution": {
            "binding": "memory",
            "sentence": "The smallest need is 93.1 GiB, and a device has 80.0 GiB.",
            "fixes": [fix | {"sentence": "Recompute all activations: 71.0 GiB."}],
        },
    }


class Tags(HTMLParser):
    """Keeps what is open, to see that it is closed again; and every address."""

    EMPTY = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [
            value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")
        ]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def pictures(plan: dict[str, Any]) -> list[str]:
    best = plan["layouts"][0]
    return [front_svg(plan), memory_svg(plan["layouts"]), timeline_svg(best), deadline_svg(plan)]


def test_every_picture_is_well_formed_and_named(plan: dict[str, Any]) -> None:
    for svg in pictures(plan):
        root = ElementTree.fromstring(svg)
        assert root.tag == f"{SVG}svg"
        assert root.attrib["aria-label"]


def test_every_mark_lies_within_its_picture(plan: dict[str, Any]) -> None:
    for svg in pictures(plan):
        root = ElementTree.fromstring(svg)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for mark in root.iter(f"{SVG}rect"):
            assert float(mark.attrib["x"]) >= 0
            assert float(mark.attrib["x"]) + float(mark.attrib["width"]) <= width + 0.1
        for mark in root.iter(f"{SVG}circle"):
            assert 0 < float(mark.attrib["cx"]) < width
            assert 0 < float(mark.attrib["cy"]) < height


def test_every_tag_is_closed_and_nothing_comes_from_elsewhere(plan: dict[str, Any]) -> None:
    page = report_html(plan)
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.addresses == []
    assert "url(" not in page
    assert "@import" not in page
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}


def test_every_layout_stands_there_with_its_numbers(plan: dict[str, Any]) -> None:
    page = report_html(plan)
    for layout in plan["layouts"]:
        assert layout["name"] in page
        assert format_seconds(layout["seconds"]) in page
        assert format_bytes(layout["memory_bytes"]) in page
        assert format_dollars(tuple(layout["dollars"])) in page
        for name, size in layout["memory_parts_bytes"].items():
            assert f"{name}: {format_bytes(size)}" in page


def test_every_point_says_its_numbers(plan: dict[str, Any]) -> None:
    svg = front_svg(plan)
    for point in [*plan["front"], *plan["weighed"]]:
        assert f"{point['name']} on {point['devices']} devices: {format_seconds(point['seconds'])}" in svg


def test_the_chosen_layout_is_marked_once(plan: dict[str, Any]) -> None:
    root = ElementTree.fromstring(front_svg(plan))
    chosen = [mark for mark in root.iter(f"{SVG}circle") if mark.attrib["class"] == "chosen"]
    assert len(chosen) == 1


def test_a_layout_that_would_never_end_is_left_out_of_the_picture(plan: dict[str, Any]) -> None:
    endless = plan["front"][0] | {"name": "endless", "seconds": float("inf")}
    svg = front_svg(plan | {"front": [*plan["front"], endless]})
    assert "endless" not in svg
    assert "nan" not in svg


def test_the_plan_can_be_read_back_from_the_page(plan: dict[str, Any]) -> None:
    found = re.search(
        r'<script type="application/json" id="plan">(.*?)</script>', report_html(plan), re.DOTALL
    )
    assert found is not None
    assert json.loads(found.group(1)) == plan


def test_what_a_user_wrote_cannot_become_markup(plan: dict[str, Any]) -> None:
    evil = "</script><script>alert(1)</script>"
    page = report_html(plan | {"job": evil, "explanation": [evil]})
    assert page.count("<script") == 1


def test_no_solution_says_what_is_in_the_way_and_what_would_help(plan: dict[str, Any]) -> None:
    page = report_html(unsolved(plan))
    assert "The smallest need is 93.1 GiB" in page
    assert "Recompute all activations" in page
    assert "<svg" not in page


@pytest.mark.parametrize("price", [None, 0.0])
def test_without_prices_time_is_drawn_against_memory(plan: dict[str, Any], price: float | None) -> None:
    unpriced = copy.deepcopy(plan)
    for point in [*unpriced["front"], *unpriced["weighed"], *unpriced["by_devices"]]:
        point["dollars"] = price
    for layout in unpriced["layouts"]:
        layout["dollars"] = None if price is None else [price, price]
        layout["kwh"] = layout["loss"] = None
    page = report_html(unpriced)
    assert "memory of the fullest device" in page
    assert "Cost against deadline" not in page
    assert "unknown" in page


def test_a_pipeline_of_many_stages_shows_the_first_and_the_last(plan: dict[str, Any]) -> None:
    deep = copy.deepcopy(plan["layouts"][0])
    deep["choices"]["pp"] = 64
    svg = timeline_svg(deep)
    assert "stage 0<" in svg
    assert "stage 63<" in svg
    assert svg.count(">stage ") <= 16
