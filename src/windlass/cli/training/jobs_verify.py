"""`windlass jobs verify`: load a run's newest checkpoint from every tier and verify it."""

from __future__ import annotations

import argparse
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.runs.run_status import find_run
from windlass.runs.verify import verify_run
from windlass.spec.errors import BadInput
from windlass.spec.units import format_bytes

DESCRIPTION = """\
Load the newest checkpoint of a run in a separate process, from local disk and from the store; check every
byte against its digest, and the loss of its weights against the recorded one. Exit code 1 if any differs.
"""


def add_verify(verbs: argparse._SubParsersAction[Any]) -> None:
    """Add the verb to `windlass jobs`."""
    verb = verbs.add_parser(
        "verify",
        help="load the newest checkpoint and verify digests and loss",
        description=DESCRIPTION,
    )
    verb.add_argument("name", metavar="NAME[/RUN]", help="the job's name, and which of its runs")
    verb.add_argument("--step", type=int, help="the checkpoint of this step (default: the newest)")
    add_home(verb)
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(run=run_verify)


def run_verify(args: argparse.Namespace) -> int:
    if args.step is not None and args.step < 0:
        raise BadInput(f"--step {args.step}: must be zero or more")
    home = home_of(args)
    found = verify_run(find_run(home, args.name), home, args.step)
    if args.json:
        print_json(found)
    else:
        rows = [_row(tier) for tier in found["tiers"]]
        print_table(rows, ("tier", "step", "verdict", "size", "seconds", "what was found"))
    return 0 if found["ok"] else 1


def _row(tier: dict[str, Any]) -> tuple[str, ...]:
    return (
        tier["tier"],
        str(tier["step"]) if tier["step"] >= 0 else "",
        "good" if tier["ok"] else "NOT GOOD" if tier["there"] else "not there",
        format_bytes(tier["bytes"]) if tier["bytes"] else "",
        f"{tier['seconds']:.1f}",
        tier["message"],
    )
