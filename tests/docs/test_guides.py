"""The tutorial and the guides can be followed: their shell blocks run, in order."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.registry.versions import Registry
from windlass.spec.run import RESULT

ROOT = Path(__file__).parents[2]
GUIDES = sorted(path.name for path in (ROOT / "docs" / "guides").glob("*.md"))
PARTS = ("Goal: ", "```sh\n", "## What can go wrong\n")

JOB = """
name = "poems"

[corpus]
sources = ["topics.txt"]
document = "paragraph"
validation_share = 0.2

[corpus.tokenizer]
vocabulary = 400

[model]
layers = 2
width = 32
heads = 2
context = 64

[train]
steps = 30
batch_sequences = 8

[machine]
threads = 1
compile = "off"
"""

Walk = Callable[[str, Path], str]


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_has_a_goal_commands_and_what_can_go_wrong(guide: str) -> None:
    text = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    for part in PARTS:
        assert part in text, f"{guide} has no '{part.strip()}'"


def test_the_index_of_the_documents_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w./-]+\.md)\)", index))
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = str(page.relative_to(ROOT / "docs"))
        if name.partition("/")[0] not in ("README.md", "formats", "decisions"):
            assert name in linked, f"docs/README.md does not name {name}"


@pytest.mark.slow
def test_the_tutorial_leads_from_nothing_to_an_answer(walk: Walk, tmp_path: Path) -> None:
    told = walk("tutorial.md", tmp_path)
    assert "registered as tutorial@1" in told
    assert '"object":"text_completion"' in told.replace('": "', '":"')
    assert '"corrected":{"model":"tutorial"' in told.replace(" ", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the guides start from: a job, its text, and two versions of a model called poems."""
    import pydoc_data.topics

    folder = tmp_path_factory.mktemp("guides")
    texts = list(pydoc_data.topics.topics.values())[:20]
    (folder / "topics.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (folder / "poems.toml").write_text(JOB)
    home = folder / ".windlass"
    command = [sys.executable, "-m", "windlass.cli", "train", "poems.toml", "--home", str(home)]
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    Registry(home).register("poems", home / "runs" / "poems" / "1" / RESULT)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_can_be_followed(guide: str, walk: Walk, folder: Path) -> None:
    walk(f"guides/{guide}", folder)
