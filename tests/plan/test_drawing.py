from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.report.drawing import axis_of, bar, element, label, legend, picture

POSITIVE = st.floats(1e-3, 1e12)


@given(st.lists(POSITIVE, min_size=1, max_size=20), st.booleans())
def test_every_value_lies_within_its_axis_in_order(values: list[float], log: bool) -> None:
    axis = axis_of(values, 10.0, 110.0, log=log)
    places = [axis.at(value) for value in sorted(values)]
    assert places == sorted(places)
    assert all(10 <= place <= 110 for place in places)


@given(POSITIVE, st.floats(1.0, 1e6), st.booleans())
def test_an_axis_has_a_few_round_marks(low: float, spread: float, log: bool) -> None:
    axis = axis_of([low, low * spread], 0.0, 100.0, log=log)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(axis.low <= tick <= axis.high for tick in ticks)
    assert ticks == sorted(set(ticks))


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="\ufffe\uffff"))
)
def test_any_text_can_stand_in_a_picture(text: str) -> None:
    svg = picture(10, 10, text, [label(1, 2, text), bar(0, 0, 1, 1, "part0", text or "x")])
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == text


def test_attributes_are_written_as_svg_names_them() -> None:
    assert (
        element("line", x1=1.0, kind="grid", text_anchor="end")
        == '<line x1="1" class="grid" text-anchor="end"/>'
    )


def test_a_bar_is_never_negative() -> None:
    assert 'width="0"' in bar(0, 0, -3.0, 1, "part0")


def test_names_of_a_legend_do_not_overlap() -> None:
    parts = legend(0, 0, [("a", "short"), ("b", "longer name"), ("c", "x")])
    places = [float(ElementTree.fromstring(part).attrib["x"]) for part in parts if part.startswith("<rect")]
    assert places == sorted(places)
    assert places[2] - places[1] > 6 * len("longer name")


def test_one_value_makes_an_axis_too() -> None:
    assert axis_of([5.0], 0.0, 1.0).at(5.0) == pytest.approx(0.5)
