"""The README's commands work, in order, for a newcomer in an empty directory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN, TESTED = "train.time=20s", "train.time=3s"
"""The tour trains for as long as a reader waits gladly; the same commands need less to be tested."""


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    assert any(SHOWN in line for line in lines)
    return [line.replace(SHOWN, TESTED) for line in lines]


@pytest.mark.slow
def test_the_tour_of_the_readme_can_be_walked(tmp_path: Path) -> None:
    tour = commands()
    assert len(tour) >= 8
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "WINDLASS_HOME": str(tmp_path / "home")}
    for line in tour:
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_every_verb_is_in_the_readme() -> None:
    from windlass.cli.main import VERBS

    text = (ROOT / "README.md").read_text()
    for verb in VERBS:
        assert re.search(rf"^\| `{verb}\b", text, re.MULTILINE), verb
