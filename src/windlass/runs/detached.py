"""Starts training that outlives the terminal it was started from."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from windlass.runs.training import RunFolder
from windlass.spec.processes import CLI
from windlass.spec.protocol.entrypoint import PARENT

OUTPUT = "train.log"
"""In the run's directory: what the training command would have printed to a terminal."""


def start_detached(folder: RunFolder, arguments: Sequence[str]) -> int:
    """Start `windlass train` with these arguments in a session of its own; return its process id.

    A closed terminal or a Ctrl-C in it does not reach the process.
    """
    environment = {key: value for key, value in os.environ.items() if key != PARENT}
    with (folder.path / OUTPUT).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", CLI, "train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environment, "PYTHONUNBUFFERED": "1"},
        )
    return process.pid
