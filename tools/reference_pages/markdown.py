"""Tables, code and anchors, as GitHub's Markdown has them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MADE = "<!-- Made from the code by tools/reference; change the code, then run it again. -->"


def head(title: str, *paragraphs: str) -> list[str]:
    """Return the lines that a page begins with."""
    lines = [f"# {title}", "", MADE, ""]
    for paragraph in paragraphs:
        lines += [paragraph, ""]
    return lines


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table and the empty line after it; nothing where there are no rows."""
    filled = [[_cell(text) for text in row] for row in rows]
    if not filled:
        return []
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    return lines + [f"| {' | '.join(row)} |" for row in filled] + [""]


def code(text: str) -> str:
    """Return text as code within a line; inside a table, too."""
    if not text:
        return ""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def block(text: str) -> list[str]:
    """Return text as an indented block that no test runs, and the empty line after it."""
    return [f"    {line}".rstrip() for line in text.strip("\n").splitlines()] + [""]


def anchor(heading: str) -> str:
    """Return where GitHub puts a heading: small letters, digits, hyphens and underscores."""
    plain = re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def whole(lines: Iterable[str]) -> str:
    """Return a page that ends with one line end."""
    return "\n".join(lines).rstrip("\n") + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
