"""Links lead somewhere: to files that exist, and to headings that the page has."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if ":" in path:
            assert path.startswith(("https://", "http://", "mailto:")), target
            continue
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target}: there is no such file"
        assert found.is_relative_to(ROOT), f"{target}: leaves the repository"
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}: {found.name} has no such heading"


@cache
def anchors(page: Path) -> set[str]:
    """Return where GitHub puts the headings of a page; repeated ones are numbered."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*#*$", without_blocks(page.read_text("utf-8")), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        count = seen[name] = seen.get(name, -1) + 1
        found.add(f"{name}-{count}" if count else name)
    return found


def prose(page: Path) -> str:
    """Return a page without code, in which brackets mean something else."""
    text = without_blocks(page.read_text(encoding="utf-8"))
    return re.sub(r"`[^`\n]*`", "", text)


def without_blocks(text: str) -> str:
    fenced = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<=\n\n)(?: {4}.*\n|\n)+", "\n", fenced)
