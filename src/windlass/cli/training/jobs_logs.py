"""`windlass jobs logs`: the events of a run, as lines of text or as journal records."""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from typing import Any

from windlass.cli.home import add_home, home_of
from windlass.runs.run_status import find_run, is_running
from windlass.runs.tail import Tail
from windlass.spec.run import JOURNAL

LOOK_EVERY_S = 0.2
SHOWN_CHARS = 100


def add_logs(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:\n  windlass jobs logs poems --follow\n"
    parser.add_argument("--follow", "-f", action="store_true", help="follow the run until it ends")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="skip the first N records")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print the journal records, one per line")


def run_logs(args: argparse.Namespace) -> int:
    folder = find_run(home_of(args), args.name)
    tail = Tail(folder.path / JOURNAL, after=args.after)
    while True:
        running = args.follow and is_running(folder)
        for record in tail.read():
            print(json.dumps(record, ensure_ascii=False) if args.json else line_of(record), flush=True)
        if not running:
            return 0
        time.sleep(LOOK_EVERY_S)


def line_of(record: dict[str, Any]) -> str:
    """Format a record as one line: time, event and values."""
    values = {key: value for key, value in record.items() if key not in ("event", "time")}
    said = "  ".join(f"{key} {_short(value)}" for key, value in values.items())
    return f"{clock(record.get('time', 0.0))}  {record.get('event', ''):<12} {said}".rstrip()


def clock(seconds: float) -> str:
    """Format a journal time in this machine's time zone."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
