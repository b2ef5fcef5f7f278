"""Where this user's corpora, runs and models are: .windlass here, or $WINDLASS_HOME."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from windlass.spec.errors import BadInput


def add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--home", help="directory of corpora, runs and models (default: $WINDLASS_HOME or .windlass)"
    )


def home_of(args: argparse.Namespace) -> Path:
    """Return the home directory, which need not exist yet."""
    home = Path(args.home or os.environ.get("WINDLASS_HOME") or ".windlass").expanduser().absolute()
    if home.exists() and not home.is_dir():
        raise BadInput(f"{home}: is a file, not a directory", hint="give another --home")
    return home
