"""The arguments of verbs on a service's state: database, actor, limits, durations."""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from windlass.cli.home import add_home, home_of
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.state import VARIABLE, open_state, state_url
from windlass.spec.errors import AskedWrongly
from windlass.spec.limits import Limits
from windlass.spec.read import parse
from windlass.spec.units import parse_seconds
from windlass.store.database import Database


def add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        metavar="URL",
        help="database of the service, sqlite:///PATH or postgresql://USER@HOST/DATABASE"
        f" (default: ${VARIABLE} or HOME/service.db)",
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


@contextmanager
def opened_state(args: argparse.Namespace) -> Iterator[Database]:
    """Open the database of the service given by the options."""
    database = open_state(state_url(home_of(args), args.state))
    try:
        yield database
    finally:
        database.close()


def person() -> Actor:
    """Return the user of this terminal, as recorded in the audit log."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for this number
        user = str(os.getuid())
    return Actor("", f"cli {user}")


def add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits").add_mutually_exclusive_group()
    group.add_argument(
        "--limit",
        dest="limits",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=f"{', '.join(Limits.model_fields)} (may be repeated; replaces all earlier limits)",
    )
    group.add_argument("--no-limits", action="store_true", help="remove its own limits")


def limits_of(args: argparse.Namespace) -> Limits | None:
    """Return the given limits; an empty one for --no-limits."""
    if args.no_limits:
        return Limits()
    given = dict(_pair(text) for text in args.limits)
    return parse(Limits, given, "--limit") if given else None


def duration(text: str, option: str) -> float:
    """Parse the duration of an option."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise AskedWrongly(f"{option} {text}: {error}") from None


def when(seconds: float | None) -> str:
    """Format a time in the local time zone."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def limits_text(limits: Limits | None) -> str:
    given = {} if limits is None else limits.model_dump(exclude_none=True)
    return " ".join(f"{name}={value}" for name, value in given.items())


def described(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    purpose: str,
    examples: Sequence[str],
) -> argparse.ArgumentParser:
    """Add a subcommand, with examples."""
    parser = verbs.add_parser(
        name,
        help=purpose,
        description=purpose[0].upper() + purpose[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  windlass {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_state(parser)
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise AskedWrongly(f"--limit {text}: write NAME=VALUE", hint="e.g. --limit requests_per_second=5")
    return name.strip(), value.strip()
