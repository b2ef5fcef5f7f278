"""docs/reference is what the code says of itself; `tools/reference` renews it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windlass.http.errors import CODES
from windlass.spec.schema import job_template

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """The pages as the tool would write them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tools")
        from reference_pages.pages import pages

        return pages()


def test_the_reference_is_what_the_tool_writes(written: dict[str, str]) -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")}
    stale = sorted(name for name in {*kept, *written} if kept.get(name) != written.get(name))
    assert not stale, f"docs/reference: {', '.join(stale)} fell behind the code; run tools/reference"


def test_every_key_of_the_commented_job_file_is_in_the_reference(written: dict[str, str]) -> None:
    told = re.findall(r"^\| `(\w+)` \|", written["job-file.md"], re.MULTILINE)
    keys = re.findall(r"^(?:# )?([a-z]\w*) =", job_template("job"), re.MULTILINE)
    assert len(keys) > 100
    sections = {"scale", "price", "rope_scaling", "tolerations", "volumes"}  # tables that may be left out
    assert set(keys) <= {*told, *sections}


def test_every_code_has_a_section(written: dict[str, str]) -> None:
    assert re.findall(r"^## (\w+)$", written["errors.md"], re.MULTILINE) == list(CODES)
