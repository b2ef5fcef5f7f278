"""Draws in SVG: elements, axes, ticks. Pure text, so that a report needs nothing from elsewhere.

Colours are CSS classes; the page defines them for light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

NICE = (1, 2, 5)
MIN_TICKS = 3
PADDING = 0.06
"""Share of an axis that stays free on both sides of the data."""


@dataclass(frozen=True)
class Axis:
    """Turns values into places along a line of the picture."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high, here = (self._place(v) for v in (self.low, self.high, value))
        return self.start + (here - low) / (high - low) * (self.stop - self.start)

    def ticks(self, max_ticks: int = 6, unit: float = 1.0) -> list[float]:
        """Return values within the axis that are round in `unit`, at most about `max_ticks`."""
        find = _log_ticks if self.log else _even_ticks
        marks = [mark * unit for mark in find(self.low / unit, self.high / unit, max_ticks)]
        return [mark for mark in marks if self.low <= mark <= self.high]

    def _place(self, value: float) -> float:
        return math.log(value) if self.log else value


def axis_of(
    values: Iterable[float], start: float, stop: float, *, log: bool = False, zero: bool = False
) -> Axis:
    """Return an axis with all values inside and some space around them."""
    known = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
    low, high = (0.0 if zero else min(known)), max(known)
    if log:
        factor = max(high / low, 1.5) ** PADDING
        return Axis(low / factor, high * factor, start, stop, log=True)
    span = high - low
    room = (span if span > 1e-6 * abs(high) else abs(high) or 1.0) * PADDING
    return Axis(low if zero else low - room, high + room, start, stop)


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Return a whole SVG that a page can hold and a screen reader can name."""
    inside = "".join([element("title", title), *parts])
    return raw(
        "svg", inside, viewBox=f"0 0 {_round(width)} {_round(height)}", role="img", aria_label=title,
        xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip


def element(name: str, text: str | None = None, **attributes: object) -> str:
    """Return an element that holds text, or nothing."""
    return raw(name, "" if text is None else escape(text), **attributes)


def raw(name: str, inside: str, **attributes: object) -> str:
    """Return an element that holds other elements; `aria_label` becomes aria-label, `kind` its class."""
    written = "".join(
        f' {_attribute(key)}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"


def label(x: float, y: float, text: str, kind: str = "label", anchor: str = "start") -> str:
    return element("text", text, x=x, y=y, kind=kind, text_anchor=anchor)


def bar(x: float, y: float, width: float, height: float, kind: str, tooltip: str = "") -> str:
    """Return a filled rectangle with a tooltip."""
    inside = element("title", tooltip) if tooltip else ""
    return raw("rect", inside, x=x, y=y, width=max(0.0, width), height=height, kind=kind)


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, kind=kind)


def path(points: Iterable[tuple[float, float]], kind: str) -> str:
    return element("polyline", points=" ".join(f"{_round(x)},{_round(y)}" for x, y in points), kind=kind)


def dot(x: float, y: float, radius: float, kind: str, tooltip: str) -> str:
    return raw("circle", element("title", tooltip), cx=x, cy=y, r=radius, kind=kind)


def frame(
    across: Axis,
    up: Axis,
    say_x: Callable[[float], str],
    say_y: Callable[[float], str],
    marks_x: Iterable[float] | None = None,
) -> list[str]:
    """Return grid lines with their values, left of the picture and below it."""
    parts = []
    for mark in up.ticks():
        y = up.at(mark)
        parts += [
            line(across.start, y, across.stop, y),
            label(across.start - 6, y + 4, say_y(mark), anchor="end"),
        ]
    for mark in across.ticks() if marks_x is None else marks_x:
        x = across.at(mark)
        parts += [line(x, up.start, x, up.stop), label(x, up.start + 16, say_x(mark), anchor="middle")]
    return parts


def legend(x: float, y: float, entries: Iterable[tuple[str, str]], step: float = 7.0) -> list[str]:
    """Return a row of coloured squares with their names; `step` is the width of a letter."""
    parts = []
    for kind, name in entries:
        parts += [bar(x, y - 9, 10, 10, kind), label(x + 14, y, name)]
        x += 28 + step * len(name)
    return parts


def _even_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    rough = (high - low) / max_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(n * power for n in (*NICE, 10) if n * power >= rough)
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """Return 1, 2 and 5 times powers of ten, fewer of them over many decades."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leads in (NICE, (1, 3), (1,)):
        marks = [lead * 10.0**power for power in powers for lead in leads]
        inside = [mark for mark in marks if low <= mark <= high]
        if len(inside) <= max_ticks:
            break
    return inside if len(inside) >= MIN_TICKS else _even_ticks(low, high, max_ticks - 2)


def _attribute(key: str) -> str:
    return "class" if key == "kind" else key if key == "viewBox" else key.replace("_", "-")


def _text(value: object) -> str:
    return _round(value) if isinstance(value, float) else str(value)


def _round(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
