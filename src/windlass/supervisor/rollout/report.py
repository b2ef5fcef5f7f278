"""The report of a roll-out: HOME/rollouts/ID/report.md for people, and report.json for programs.

The format is docs/formats/rollout-report.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from windlass.store.store_dir import StoreDir
from windlass.supervisor.rollout.rollout_state import RolloutState

FOLDER = "rollouts"


def report_of(drive: RolloutState) -> dict[str, Any]:
    """Return the report of a roll-out as of now."""
    record = drive.record
    return {
        "id": record.id,
        "name": record.name,
        "stable": drive.stable.version,
        "candidate": record.candidate,
        "kind": record.kind,
        "state": drive.state,
        "weight": drive.weight,
        "verdict": _verdict(drive),
        "reason": drive.reason or drive.evidence.reason,
        "measured_on": drive.origin,
        "policy": record.policy.model_dump(mode="json"),
        "history": list(drive.history),
        "faults": list(drive.evidence.faults),
        "alarms": drive.evidence.alarms,
        "criteria": drive.evidence.table(),
    }


def write_report(home: Path, report: dict[str, Any]) -> Path:
    """Write both files; return the folder."""
    folder = home / FOLDER / str(report["id"])
    place = StoreDir(folder)
    place.write("report.json", (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode())
    place.write("report.md", markdown(report).encode())
    return folder


def markdown(report: dict[str, Any]) -> str:
    """Format a report as Markdown."""
    lines = [
        f"# Roll-out {report['id']}: {report['candidate']} instead of {report['stable']}",
        "",
        f"**{report['state'].replace('_', ' ').capitalize()}**: {report['reason']}.",
        "",
        f"Kind {report['kind'].replace('_', '/')}; compared on {_ORIGINS[report['measured_on']]}.",
        "",
        "| after | state | part of the requests | copies |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {step['after_s']:.1f} s | {step['state'].replace('_', ' ')} | {step['weight']:.0%} |"
        f" {step['shadow']:.0%} |"
        for step in report["history"]
    ]
    lines += [
        "",
        "| criterion | comparisons | mean | tolerated | against it | needed | for it | needed |",
        "|---|---|---|---|---|---|---|---|",
        *map(_row, report["criteria"]),
        "",
        *(f"- {row['criterion']}: {row['meaning']}" for row in report["criteria"]),
    ]
    return "\n".join(lines) + "\n"


_ORIGINS = {
    "": "nothing: no comparison was made",
    "file": "the held-out text that was given",
    "corpus": "the held-out part of the corpus that the old version was trained on",
    "own": "text that the old version wrote",
    "vectors": "vectors, of which only failures and times can be compared",
}


def _row(row: dict[str, Any]) -> str:
    mean = "" if row["mean"] is None else f"{row['mean']:.4g}"
    return (
        f"| {row['criterion']} | {row['comparisons']} | {mean} | {row['tolerated']:.3g} |"
        f" {row['against']:.3g} | {row['against_needed']:.3g} | {row['for']:.3g} | {row['for_needed']:.3g} |"
    )


def _verdict(drive: RolloutState) -> str:
    ended = {"promoted": "promote", "rolled_back": "roll back", "aborted": "abort"}
    return ended.get(drive.state, drive.evidence.verdict)
