"""`windlass jobs audit`: check that every sample of a run was used exactly once, and where its time went.

`jobs show` prints the second part, too, with the functions of this module.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.runs.audit import LedgerAudit, audit
from windlass.runs.clock_skew import mended
from windlass.runs.goodput import MEANINGS, GoodputBreakdown, goodput
from windlass.runs.incidents import Incident, incidents
from windlass.runs.run_status import find_run
from windlass.spec.run import JOURNAL
from windlass.spec.units import format_count, format_seconds
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

MAX_INCIDENTS = 10


def add_audit(verbs: argparse._SubParsersAction[Any]) -> None:
    """Add the verb to `windlass jobs`."""
    purpose = "check that every sample was used exactly once per epoch, or list those that were not"
    verb = verbs.add_parser(
        "audit", help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}. Exit code 1 if it was not."
    )
    verb.add_argument("name", metavar="NAME[/RUN]", help="the job's name, and which of its runs")
    add_home(verb)
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run_audit)


def run_audit(args: argparse.Namespace) -> int:
    folder = find_run(home_of(args), args.name)
    found = audit(folder.path)
    if args.json:
        print_json({"run": folder.name, **found.facts()})
    else:
        for line in audit_lines(folder.name, found):
            print(line)
    return 0 if found.ok else 1


def audit_lines(name: str, found: LedgerAudit) -> list[str]:
    """Describe the result of the ledger audit."""
    if not found.ok:
        head = f"{name}: not every sample was used exactly once, or the ledger cannot prove it"
    elif found.records == 0:
        head = f"{name}: no step was taken yet"
    else:
        head = f"{name}: all {found.samples_used} samples of {found.steps} steps were used exactly once"
    return [head, *(f"- {line}" for line in [*found.reasons, *_details(found), *found.notes])]


def account_of(folder: Path) -> tuple[GoodputBreakdown, list[Incident]]:
    """Read the goodput breakdown and the incidents of a run."""
    records = mended(Journal(StoreDir(folder), JOURNAL).read())
    return goodput(records), incidents(records)


def account_facts(folder: Path) -> dict[str, Any]:
    """Return both as JSON values."""
    spent, happened = account_of(folder)
    return {"goodput": spent.facts(), "incidents": [incident.facts() for incident in happened]}


def print_account(folder: Path) -> None:
    """Print both as text, if there is anything to show."""
    spent, happened = account_of(folder)
    rows = goodput_rows(spent)
    if rows:
        print()
        print_table(rows, ("time", "share", "long", "what"))
    if happened:
        print(f"\nincidents: {len(happened)}")
        for line in incident_lines(happened):
            print(line)


def goodput_rows(spent: GoodputBreakdown) -> list[tuple[str, str, str, str]]:
    """List the causes of spent time, the largest first; a run of zero length has none."""
    shares = spent.shares
    kinds = sorted((kind for kind in shares if shares[kind] > 0), key=lambda kind: -shares[kind])
    return [
        (kind, f"{shares[kind]:.1%}", format_seconds(spent.seconds[kind]), MEANINGS[kind]) for kind in kinds
    ]


def incident_lines(happened: list[Incident], *, limit: int = MAX_INCIDENTS) -> list[str]:
    """Describe the newest incidents."""
    earlier = len(happened) - limit
    lines = [f"- {incident.sentence}" for incident in happened[-limit:]]
    return [f"- {earlier} earlier incidents are in `--json`", *lines] if earlier > 0 else lines


def _details(found: LedgerAudit) -> list[str]:
    lines = []
    if found.epochs is not None and found.samples_used:
        whole, epochs = found.epochs.whole, found.epochs
        rest = f"{whole} whole epoch{'s' * (whole != 1)} and " if whole else ""
        lines.append(f"that is {rest}{epochs.begun} of {epochs.samples} samples of an epoch")
        lines.append(f"{format_count(epochs.checked)} positions of these epochs are different samples")
    if found.records:
        lines.append(f"digests of what was read: {found.records} ledger records checked")
    if found.roll_backs:
        times = "once" if found.roll_backs == 1 else f"{found.roll_backs} times"
        lines.append(f"{found.rolled_back} more were used and rolled back, {times}")
    return lines
