"""The walks of docs/architecture.md lead through the code: every name exists and is reached."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def walks() -> ModuleType:
    """tools/walks as a module."""
    loader = SourceFileLoader("walks", str(ROOT / "tools" / "walks"))
    spec = spec_from_loader("walks", loader)
    assert spec is not None
    module = module_from_spec(spec)
    import sys

    sys.modules["walks"] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


def test_every_step_of_a_walk_calls_or_messages_the_next(walks: ModuleType) -> None:
    found = walks.read_walks((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert [walk.name for walk in found] == ["batch", "completion", "job", "plan"]
    faults = [fault for walk in found for fault in walks.faults_of(walk)]
    assert not faults, "\n".join(faults)


PAGE = """
## Walk: made_up

1. `windlass.cli.main.main` -> `windlass.store.lease.Lease`
2. `windlass.store.manifest.no_such_thing`
"""


def test_a_walk_that_goes_astray_is_noticed(walks: ModuleType) -> None:
    [walk] = walks.read_walks(PAGE)
    assert walks.faults_of(walk) == [
        "made_up: windlass.store.lease.Lease is not reached from windlass.cli.main.main",
        "made_up: windlass.store.manifest.no_such_thing does not exist",
    ]


def test_a_boundary_between_processes_needs_the_process_or_the_message(walks: ModuleType) -> None:
    right = "## Walk: a\n1. `windlass.runs.training.train` => `windlass.train.__main__.main`\n"
    wrong = right.replace("windlass.train.__main__.main", "windlass.serve.engine.__main__.main")
    assert walks.faults_of(walks.read_walks(right)[0]) == []
    assert len(walks.faults_of(walks.read_walks(wrong)[0])) == 1
