"""The table of processes: every entry can be started, and no other file names a module to start."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import windlass
from windlass.spec.processes import ENTRY_POINTS

SRC = Path(windlass.__file__).parent
NOT_STARTED = ("files", "get_tracer", "import_module")
"""Calls that take the name of a package for something else: its data files, a label, an import."""


@pytest.mark.parametrize("module", ENTRY_POINTS.values())
def test_every_entry_point_is_a_module_that_runs(module: str) -> None:
    path = SRC.parent.joinpath(*module.split("."))
    file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert 'if __name__ == "__main__":' in file.read_text() or file.name == "__main__.py"


def test_every_module_that_runs_is_in_the_table() -> None:
    runs = {path for path in SRC.rglob("*.py") if '\nif __name__ == "__main__":' in path.read_text()}
    modules = {".".join(path.relative_to(SRC.parent).with_suffix("").parts) for path in runs}
    modules = {module.removesuffix(".__main__") for module in modules}
    by_path = "windlass.cluster.process.sandbox_exec"  # started by file, before packages are loaded
    assert modules - {by_path} <= set(ENTRY_POINTS.values())


def test_no_other_file_names_a_module_to_start() -> None:
    found = []
    quoted = re.compile(f"[\"'](?:{'|'.join(map(re.escape, ENTRY_POINTS.values()))})[\"']")
    for path in SRC.rglob("*.py"):
        text = path.read_text()
        if (path.name != "processes.py" or path.parent.name != "spec") and quoted.search(text):
            tree = ast.parse(text)
            found += [f"{path.relative_to(SRC)}: {name}" for name in _named_modules(tree)]
    assert found == []


def _named_modules(tree: ast.Module) -> list[str]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {id(call): getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls}
    harmless = {id(arg) for call in calls if names[id(call)] in NOT_STARTED for arg in call.args}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in harmless
        if isinstance(node.value, str) and node.value in ENTRY_POINTS.values()
    ]


def test_all_of_them_can_be_found() -> None:
    assert [module for module in ENTRY_POINTS.values() if find_spec(module) is None] == []
