"""The arguments of the backup verbs: URL, secret, and the settings of backup.toml."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from pathlib import Path
from typing import Any

from windlass.backup.databases import KINDS, SERVICE
from windlass.backup.make import BackupOptions
from windlass.backup.repository import BackupRepository, open_repository
from windlass.cli.home import add_home, home_of
from windlass.serve.records.state import VARIABLE as STATE_VARIABLE
from windlass.spec.backup import FILE, Backup
from windlass.spec.errors import AskedWrongly, BadInput
from windlass.spec.read import parse, read_toml

VARIABLE = "WINDLASS_BACKUP_KEY"
"""Holds the secret of an encrypted backup; unlike an option, other users cannot read it."""


def add_backup(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every backup verb."""
    parser.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help=f"where the backup is: a directory or a store URL (default: url in HOME/{FILE})",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--key-file", metavar="FILE", help=f"file with the encryption secret (default: ${VARIABLE})"
    )
    group.add_argument(
        "--passphrase", action="store_true", help="prompt for the passphrase that encrypts the backup"
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_making(parser: argparse.ArgumentParser) -> None:
    """Add the options for making a snapshot."""
    parser.add_argument(
        "--corpora", action="store_true", help="include the tokens of corpora, not only their metadata"
    )
    add_databases(parser, f"database of the service, if it is not in the home (default: ${STATE_VARIABLE})")
    parser.add_argument("--rate", metavar="BYTES", help="upload limit in bytes per second, e.g. 20MiB")
    add_parallel(parser)


def add_databases(parser: argparse.ArgumentParser, about: str) -> None:
    names = ", ".join(kind.name for kind in KINDS)
    parser.add_argument("--state", metavar="URL", help=about)
    parser.add_argument(
        "--database",
        dest="databases",
        metavar="NAME=URL",
        action="append",
        default=[],
        help=f"the same for any database, by its name ({names}); may be repeated",
    )


def databases_of(args: argparse.Namespace, state: str | None) -> dict[str, str]:
    """Return the URLs of databases on servers; --state is the service's."""
    found = {} if state is None else {SERVICE.name: state}
    for text in args.databases:
        name, equals, url = text.partition("=")
        if not equals or not url:
            raise AskedWrongly(
                f"--database {text}: write NAME=URL", hint=f"e.g. {SERVICE.name}=postgresql://..."
            )
        found[name] = url
    return found


def add_parallel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parallel", type=int, metavar="N", help="chunks transferred in parallel (default: 4)"
    )


def settings_of(args: argparse.Namespace) -> Backup:
    """Return the settings of HOME/backup.toml, overridden by the options."""
    file = home_of(args) / FILE
    data: dict[str, Any] = read_toml(file) if file.exists() else {}
    given = {"url": args.url, "key_file": args.key_file}
    given |= {name: getattr(args, name, None) for name in ("rate", "every", "parallel")}
    data |= {name: value for name, value in given.items() if value is not None}
    if getattr(args, "corpora", False):
        data["corpora"] = True
    return parse(Backup, data, str(file) if file.exists() else "options")


def repository_of(args: argparse.Namespace, settings: Backup, *, create: bool = False) -> BackupRepository:
    """Open the backup given by the options or by backup.toml."""
    if settings.url is None:
        raise AskedWrongly(
            "no backup given", hint=f'windlass {args.verb} ... URL, or url = "..." in HOME/{FILE}'
        )
    url = settings.url if "://" in settings.url else str(Path(settings.url).expanduser().absolute())
    if create:
        _check_apart(Path(url), home_of(args))
    return open_repository(url, _secret(args, settings), create=create)


def options_of(args: argparse.Namespace, settings: Backup) -> BackupOptions:
    return BackupOptions(
        databases=databases_of(args, args.state or os.environ.get(STATE_VARIABLE)),
        corpora=settings.corpora,
        parallel=settings.parallel,
        bytes_per_s=settings.rate,
    )


def _secret(args: argparse.Namespace, settings: Backup) -> bytes | None:
    if args.passphrase:
        if not sys.stdin.isatty():
            raise AskedWrongly("--passphrase needs a terminal", hint=f"use --key-file FILE or ${VARIABLE}")
        return _checked_secret(getpass.getpass("passphrase of the backup: ").encode(), "the passphrase")
    if settings.key_file is not None:
        try:
            data = Path(settings.key_file).expanduser().read_bytes()
        except OSError as error:
            raise BadInput(f"{settings.key_file}: cannot be read: {error.strerror}") from None
        return _checked_secret(data.strip(), settings.key_file)
    variable = os.environ.get(VARIABLE)
    return None if variable is None else _checked_secret(variable.strip().encode(), f"${VARIABLE}")


def _checked_secret(secret: bytes, where: str) -> bytes:
    if len(secret) < 8:
        raise BadInput(f"{where}: a secret of at least 8 bytes is needed", hint="openssl rand -hex 32 > FILE")
    return secret


def _check_apart(target: Path, home: Path) -> None:
    """Refuse a backup inside the home: it would be lost with it, and would contain itself."""
    if target.is_relative_to(home):
        raise BadInput(f"{target}: is inside the home directory", hint="use another disk or a store")
