"""Data never becomes code: nothing in the package unpickles, evaluates or loads what it was sent."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import windlass

ROOT = Path(windlass.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__"}
LOADS = ("torch.load", "np.load", "numpy.load")
WORDS = re.compile(rf"\b(?:{'|'.join([*MODULES, *CALLS, 'load'])})\b")
"""What `loads` can find has one of these words."""


def loads(tree: ast.AST) -> Iterator[str]:
    """Find imports of what unpickles, calls of what evaluates, and torch.load without its guard."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield node.func.id
        elif isinstance(node, ast.Call) and _is_load(node.func):
            named = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            safe = named.get("weights_only") == "True" or named.get("allow_pickle", "False") == "False"
            if ast.unparse(node.func) == "torch.load":
                safe = named.get("weights_only") == "True"
            if not safe:
                yield ast.unparse(node.func)


def _is_load(called: ast.expr) -> bool:
    return isinstance(called, ast.Attribute) and called.attr == "load" and ast.unparse(called) in LOADS


def test_no_module_of_the_package_turns_data_into_code() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 100
    texts = {file: file.read_text("utf-8") for file in files}
    found = {
        str(file.relative_to(ROOT)): list(loads(ast.parse(text)))
        for file, text in texts.items()
        if WORDS.search(text)
    }
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "eval('1')",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_the_search_would_find_it(source: str) -> None:
    assert list(loads(ast.parse(source)))
