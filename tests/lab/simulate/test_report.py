from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from windlass.cli.main import main
from windlass.lab.simulate.plot import page_html, picture_svg
from windlass.lab.simulate.report import jain, report_of
from windlass.lab.simulate.scenario import names, scenario_of
from windlass.lab.simulate.simulation import Simulation
from windlass.spec.errors import BadInput


def test_jains_index_is_one_for_equals_and_one_in_n_for_a_monopoly() -> None:
    assert jain([0.2, 0.2, 0.2]) == pytest.approx(1.0)
    assert jain([0.6, 0.0, 0.0]) == pytest.approx(1 / 3)


def test_the_picture_is_drawn_from_the_report_alone() -> None:
    simulation = Simulation(scenario_of("day", 20, 1.0, 1))
    simulation.run()
    report = json.loads(json.dumps(report_of(simulation)))
    svg = ElementTree.fromstring(picture_svg(report))
    lines = svg.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) >= 5 + len(report["samples"][0]["shares"])
    assert "seed 1" in page_html(report)


@pytest.mark.parametrize(
    ("name", "nodes", "hours"), [("dya", 100, 1.0), ("day", 1, 1.0), ("day", 100, 0.0), ("day", 10**7, 1.0)]
)
def test_what_cannot_be_simulated_is_refused(name: str, nodes: int, hours: float) -> None:
    with pytest.raises(BadInput):
        scenario_of(name, nodes, hours, 1)


def test_every_scenario_can_be_read() -> None:
    assert names() == ["calm", "day", "bad", "hostile"]
    for name in names():
        assert scenario_of(name, 100, 1.0, 1).name == name


def test_the_command_prints_a_report_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "day.svg"
    assert main(["simulate", "--nodes", "20", "--hours", "1", "--json", "--plot", str(picture)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["jobs"]["lost"] == 0
    assert picture.read_text().startswith("<svg")
    assert main(["simulate", "--nodes", "20", "--hours", "1"]) == 0
    assert "lost, 0 run twice" in capsys.readouterr().out


def test_a_wrong_picture_is_refused_before_the_work(tmp_path: Path) -> None:
    assert main(["simulate", "--plot", str(tmp_path / "day.png")]) == 2
    assert main(["simulate", "--plot", str(tmp_path / "nowhere" / "day.svg")]) == 2
    assert main(["simulate", "--scenario", "dya"]) == 2
