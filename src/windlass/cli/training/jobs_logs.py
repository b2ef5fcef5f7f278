"""`windlass jobs logs`: what a run told, as lines for people or as its journal's records."""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.runs.run_status import find_run, goes_on
from windlass.runs.tail import Tail
from windlass.spec.run import JOURNAL

LOOK_EVERY_S = 0.2
SHOWN_CHARS = 100


def add_logs(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:\n  windlass jobs logs poems --follow\n"
    parser.add_argument("--follow", "-f", action="store_true", help="go on until the run ends")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="leave out the first N records")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print the records themselves, one a line")


def run_logs(args: argparse.Namespace) -> int:
    folder = find_run(home_of(args), args.name)
    tail = Tail(folder.path / JOURNAL, after=args.after)
    while True:
        running = args.follow and goes_on(folder)
        for record in tail.read():
            print(json.dumps(record, ensure_ascii=False) if args.json else line_of(record), flush=True)
        if not running:
            return 0
        time.sleep(LOOK_EVERY_S)


def line_of(record: dict[str, Any]) -> str:
    """Say a record in one line: when, what, and its values."""
    values = {key: value for key, value in record.items() if key not in ("event", "time")}
    said = "  ".join(f"{key} {_short(value)}" for key, value in values.items())
    return f"{clock(record.get('time', 0.0))}  {record.get('event', ''):<12} {said}".rstrip()


def clock(seconds: float) -> str:
    """Return a time of the journal as this machine's clock shows it."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
