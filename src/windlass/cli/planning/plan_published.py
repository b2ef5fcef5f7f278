"""`windlass plan published`: predict published measurements, and print the errors by source."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.cli.terminal import print_json, print_table
from windlass.lab.planner.published import find_rows, folds, judge, refitted, rows_to_fit
from windlass.lab.planner.rows import read_rows
from windlass.lab.planner.validation_report import verdict
from windlass.plan.cost.fitted_constants import TABLE, format_known
from windlass.runs.progress_line import ProgressLine
from windlass.spec.errors import BadInput

EPILOG = """\
Every set of rows is predicted with constants that were fitted without it. Rows of another file (--rows) are
predicted with the shipped constants, unless they belong to a set that those were fitted to. docs/planner.md
lists the columns, the formulas and the sets that count.

examples:
  windlass plan published
  windlass plan published --rows measured.csv --json
  windlass plan published --refit               refit the shipped constants to all sets
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--rows", type=Path, metavar="FILE", help="CSV of measured training steps")
    parser.add_argument(
        "--refit", action="store_true", help="fit to all sets and write the shipped table of constants"
    )
    parser.add_argument(
        "--worst", type=int, default=8, metavar="N", help="show the N rows with the largest errors"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.worst < 0:
        raise BadInput(f"--worst {args.worst}: must be zero or more")
    shipped = find_rows()
    path = args.rows or shipped
    if path is None:
        raise BadInput(
            "published measurements are not on this machine",
            hint="put training_rows.csv into ../shared/planner, or name a file with --rows",
        )
    line = ProgressLine(quiet=args.json)
    rows = read_rows(path)
    training = rows if args.refit else rows_to_fit(rows, shipped)
    left_out = folds(training, sorted({row.set for row in rows} & {row.set for row in training}), line)
    line.close()
    if args.refit:
        TABLE.write_text(format_known(refitted(training, left_out)))
    found = verdict(judge(rows, left_out), rows, left_out=bool(left_out), worst=args.worst, training=training)
    if args.json:
        print_json(found)
    else:
        _print(found, path)
    return 0


def _print(found: dict[str, Any], path: Path) -> None:
    print(f"{path}: every set predicted with constants fitted without it")
    print()
    head = ("source", "rows", "used", "time error", "median", "covered", "memory error", "counted")
    print_table([_source(name, source) for name, source in found["sources"].items()], head)
    skipped = {name: source["skipped"] for name, source in found["sources"].items() if source["skipped"]}
    print("\nnot used")
    for name, reasons in skipped.items():
        print(f"- {name}: " + "; ".join(f"{count} x {why}" for why, count in sorted(reasons.items())))
    if found["worst"]:
        print("\nfurthest off")
        rows = [
            (row["set"], row["line"], row["label"], f"{row['measured_s']:.3g}s", f"{row['predicted_s']:.3g}s")
            for row in found["worst"]
        ]
        print_table(rows, ("source", "line", "row", "measured", "predicted"))
    if found["cells"]:
        print("\nwhere the chosen layout was slower than the best measured one")
        cells = [cell for cell in found["cells"] if cell["regret"] > 0]
        rows = [(c["model"], c["devices"], f"{c['regret']:.0%}", c["chosen"], c["best"]) for c in cells]
        print_table(rows, ("model", "devices", "regret", "chosen", "best"))
    print()
    print_table([(name, _percent(value)) for name, value in found["figures"].items()], ("figure", "value"))


def _source(name: str, source: dict[str, Any]) -> tuple[object, ...]:
    return (
        name,
        source["rows"],
        source["used"],
        _percent(source["time_mape"]),
        _percent(source["median_error"]),
        _percent(source["coverage"]),
        _percent(source["memory_mape"]),
        "yes" if source["counted"] else source["why_not"],
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
