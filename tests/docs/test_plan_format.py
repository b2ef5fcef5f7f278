"""docs/formats/plan.md is normative: what the command prints is what the page says, no more and no less."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from windlass.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "plan.md").read_text(encoding="utf-8")
JOB = '[corpus]\nsources = ["not-there.txt"]\n[train]\ntokens = "10B"\nbatch_sequences = 64\n'
SOMETIMES = {"team"}
"""Keys of plans for unequal devices."""


def documented(section: str) -> set[str]:
    """Return the keys in the first column of a section's table."""
    _, _, after = PAGE.partition(f"{section}\n")
    table = re.split(r"\n## ", after)[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "job.toml").write_text(JOB)
    with pytest.MonkeyPatch.context() as patch:
        told: list[Any] = []
        patch.chdir(folder)
        patch.setattr("windlass.cli.planning.plan_fleet.print_json", told.append)
        sizes = ["--sizes", "Llama-3.1-8B", "--search", "greedy", "--json"]
        assert main(["plan", "job.toml", "--fleet", "16xH100-SXM5", *sizes]) == 0
    return json.loads(json.dumps(told[0]))


def test_a_plan_has_the_keys_of_the_page(plan: Any) -> None:
    assert set(plan) == documented("# A plan, version 1")


def test_a_layout_has_the_keys_of_the_page(plan: Any) -> None:
    for layout in plan["layouts"]:
        assert set(layout) == documented("## A layout") - SOMETIMES


def test_parts_add_up_to_the_whole(plan: Any) -> None:
    for layout in plan["layouts"]:
        assert sum(layout["step_parts_s"].values()) == pytest.approx(layout["step_s"])
        assert sum(layout["memory_parts_bytes"].values()) == pytest.approx(layout["memory_bytes"])
        assert layout["memory_range_bytes"][1] <= layout["limit_bytes"]


def test_points_and_ways_have_the_keys_of_the_page(plan: Any) -> None:
    for point in [*plan["front"], *plan["by_devices"], *plan["weighed"]]:
        assert set(point) == {"name", "devices", "seconds", "dollars", "memory_bytes"}
    for way in plan["ways"]:
        assert set(way) == {"way", "changes", "seconds", "dollars", "loss", "sentence"}
