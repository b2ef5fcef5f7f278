"""The option --home of every command."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.spec.home import home_dir


def add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home", help="directory of corpora, runs and models (default: $WINDLASS_HOME or .windlass)"
    )


def home_of(args: argparse.Namespace) -> Path:
    """Return the home directory, which need not exist yet."""
    return home_dir(args.home)
