"""README.zh-CN.md stays in step with README.md: the same parts, code, links and rows in other words."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
OTHER = {"README.zh-CN.md": "README.md"}
"""Each page links to the other one."""


def blocks(text: str) -> list[str]:
    """Return all code, fenced or indented, byte for byte."""
    fenced = re.findall(r"^```.*?^```$", text, re.DOTALL | re.MULTILINE)
    return fenced + re.findall(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", text)


def links(text: str) -> list[str]:
    return [OTHER.get(target, target) for target in re.findall(r"\]\(([^)]+)\)", text)]


def levels(text: str) -> list[str]:
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^(#+) ", plain, re.MULTILINE)


def first_cells(text: str) -> list[str]:
    return re.findall(r"^\| (`.*?`) \| ", text, re.MULTILINE)


def test_headings_follow_each_other_as_in_the_english_page() -> None:
    assert levels(CHINESE) == levels(ENGLISH)


def test_code_is_the_same_byte_for_byte() -> None:
    assert len(blocks(ENGLISH)) > 10
    assert blocks(CHINESE) == blocks(ENGLISH)


def test_links_lead_to_the_same_places_in_the_same_order() -> None:
    assert "README.md" in links(CHINESE)
    assert links(CHINESE) == links(ENGLISH)


def test_the_table_of_verbs_has_the_same_rows() -> None:
    assert first_cells(CHINESE) == first_cells(ENGLISH)


def test_names_in_the_text_are_the_same() -> None:
    """What stands between backticks is typed, so it is the same in every language."""

    def typed(text: str) -> set[str]:
        return set(re.findall(r"`[^`\n]+`", text))

    assert typed(CHINESE) == typed(ENGLISH)
