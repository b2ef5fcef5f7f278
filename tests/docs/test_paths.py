"""docs/paths.md stays true: every step that it names exists."""

import importlib
import re
from pathlib import Path

import pytest

PATHS = Path(__file__).parents[2] / "docs" / "paths.md"
STEPS = sorted(set(re.findall(r"`(windlass(?:\.\w+)+)`", PATHS.read_text())))


def test_the_page_names_steps() -> None:
    assert len(STEPS) > 30


@pytest.mark.parametrize("step", STEPS)
def test_a_named_step_exists(step: str) -> None:
    names = step.split(".")
    for cut in range(len(names), 0, -1):
        try:
            found = importlib.import_module(".".join(names[:cut]))
        except ModuleNotFoundError:
            continue
        for name in names[cut:]:
            found = getattr(found, name)
        return
    raise AssertionError(f"{step} does not exist")
