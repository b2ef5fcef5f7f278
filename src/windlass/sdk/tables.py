"""Small HTML and SVG for notebooks, without any library. Pure: facts in, text out; every text is escaped.

Colours are `currentColor` and half-transparent, so that light and dark pages both show them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, EDGE = 420, 140, 36
INK = "#3b82f6"
BLOCK = "style='display:block;margin:4px 0'"


def facts_table(rows: Mapping[str, object]) -> str:
    """Show a table of names and values."""
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(shown(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{body}</table>"


def grid(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Show rows under headings."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(value))}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def preformatted(text: str) -> str:
    """Show text as it is, wrapped."""
    return f"<pre style='white-space:pre-wrap'>{escape(text)}</pre>"


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def bar(share: float | None, label: str) -> str:
    """Show a share of a whole."""
    filled = 0.0 if share is None or not math.isfinite(share) else max(0.0, min(1.0, share))
    return (
        f"<svg role='img' {BLOCK} aria-label='{escape(label, quote=True)}' width='{WIDTH}' height='18'>"
        f"<rect width='{WIDTH}' height='18' rx='4' fill='currentColor' opacity='0.15'/>"
        f"<rect width='{WIDTH * filled:.1f}' height='18' rx='4' fill='{INK}'/>"
        f"<text x='8' y='13' font-size='11' fill='currentColor'>{escape(label)}</text></svg>"
    )


def stacked(parts: Mapping[str, float], whole: float, unit: str) -> str:
    """Show parts of a whole in one bar, each with a tooltip."""
    left, drawn = 0.0, []
    for number, (name, size) in enumerate(parts.items()):
        width = WIDTH * size / whole if whole > 0 else 0.0
        drawn.append(
            f"<rect x='{left:.1f}' width='{max(0.0, width):.1f}' height='18' fill='{INK}' "
            f"opacity='{1.0 - 0.12 * (number % 7):.2f}'><title>{escape(name)}: {escape(shown(size))} {unit}"
            "</title></rect>"
        )
        left += width
    label = ", ".join(f"{name} {shown(size)}" for name, size in parts.items())
    return (
        f"<svg role='img' {BLOCK} aria-label='{escape(label, quote=True)}' width='{WIDTH}' height='18'>"
        f"<rect width='{WIDTH}' height='18' fill='currentColor' opacity='0.15'/>{''.join(drawn)}</svg>"
    )


def curve(points: Sequence[tuple[float, float]], label: str, *, dots: bool = False) -> str:
    """Draw a line through points, or the points alone, with the ends of both axes written down."""
    kept = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not kept:
        return paragraph(f"{label}: nothing to draw yet")
    low_x, high_x = min(x for x, _ in kept), max(x for x, _ in kept)
    low_y, high_y = min(y for _, y in kept), max(y for _, y in kept)
    placed = [(_place(x, low_x, high_x, WIDTH), HEIGHT - _place(y, low_y, high_y, HEIGHT)) for x, y in kept]
    marks = "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{INK}'/>" for x, y in placed)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    line = f"<polyline fill='none' stroke='{INK}' stroke-width='1.5' points='{path}'/>"
    return (
        f"<svg role='img' {BLOCK} aria-label='{escape(label, quote=True)}' width='{WIDTH}' height='{HEIGHT}' "
        f"font-size='10' fill='currentColor'>{marks if dots or len(kept) == 1 else line}"
        f"<text x='2' y='10'>{shown(high_y)}</text>"
        f"<text x='2' y='{HEIGHT - EDGE / 2:.0f}'>{shown(low_y)}</text>"
        f"<text x='{EDGE}' y='{HEIGHT - 2}'>{shown(low_x)}</text>"
        f"<text x='{WIDTH - 2}' y='{HEIGHT - 2}' text-anchor='end'>{shown(high_x)}</text>"
        f"<text x='{WIDTH / 2:.0f}' y='10' text-anchor='middle'>{escape(label)}</text></svg>"
    )


def shown(value: object) -> str:
    """Format a value for people: three significant figures, a dash for an unknown value."""
    if value is None:
        return "-"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "-"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _place(value: float, low: float, high: float, size: int) -> float:
    share = 0.5 if high <= low else (value - low) / (high - low)
    return EDGE + share * (size - 1.5 * EDGE)
