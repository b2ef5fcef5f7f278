"""The table of figures, the dashboard and the alerts name what /metrics tells, all of it and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.serve.metrics.series import Figure
from windlass.supervisor.supervisor_metrics import ServiceMetrics

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\bwindlass_[a-z0-9_]+")
LABEL = re.compile(r"by \(([a-z_, ]+)\)")
ROW = re.compile(r"^\| `(windlass_[a-z0-9_]+)` \| (\w+) \| ([a-z_, ]*)\| ", re.MULTILINE)


def figures() -> list[Figure]:
    return [*Metrics(tenants=True).registry.figures, *ServiceMetrics().registry.figures]


def told(figure: Figure) -> set[str]:
    """Return the names under which Prometheus keeps a figure."""
    if figure.kind == "histogram":
        return {f"{figure.name}_{part}" for part in ("bucket", "sum", "count")}
    return {f"{figure.name}_total" if figure.kind == "counter" else figure.name}


def expressions() -> list[str]:
    rules = yaml.safe_load((DOCS / "observability" / "alerts.yaml").read_text())
    panels = json.loads((DOCS / "observability" / "dashboard.json").read_text())["panels"]
    asked = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return asked + [target["expr"] for panel in panels for target in panel["targets"]]


def test_the_table_lists_every_figure_with_its_kind_and_labels() -> None:
    rows = ROW.findall((DOCS / "service.md").read_text())
    listed = {(name, kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows}
    wanted = {
        (f"{each.name}_total" if each.kind == "counter" else each.name, each.kind, each.labels)
        for each in figures()
    }
    assert listed == wanted
    assert len(rows) == len(wanted)


def test_dashboard_and_alerts_ask_only_for_what_is_reported() -> None:
    known = {name for figure in figures() for name in told(figure)}
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert asked
    assert asked <= known


def test_what_is_grouped_by_is_a_label_of_every_figure_in_the_expression() -> None:
    labels = {name: {*figure.labels, "le"} for figure in figures() for name in told(figure)}
    for expression in expressions():
        by = {label for group in LABEL.findall(expression) for label in re.findall(r"\w+", group)}
        for name in NAME.findall(expression):
            assert by <= labels[name], expression


def test_every_alert_says_what_is_wrong_and_what_to_look_at() -> None:
    rules = yaml.safe_load((DOCS / "observability" / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]
            assert rule["labels"]["severity"] in ("page", "warn")
