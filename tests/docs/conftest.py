"""Walks through a page: its shell blocks are one script, run in order as a reader would."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORT = "8000"
"""That of the pages; a free one takes its place, so that a test disturbs nobody."""
TESTED = {"train.time=20s": "train.time=3s", "--wait 120": "--wait 500"}
"""The pages train for as long as a reader likes to wait; tests train for less, and wait longer if need be."""
PATIENCE_S = 560

Walk = Callable[..., str]


@pytest.fixture
def walk() -> Walk:
    """Run the shell blocks of a page in a folder; return what they printed."""
    for program in ("curl", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed; the pages use it")

    def run(page: str, folder: Path) -> str:
        script = script_of(ROOT / "docs" / page).replace(PORT, str(free_port()))
        for shown, tested in TESTED.items():
            script = script.replace(shown, tested)
        assert script, f"{page} has no ```sh block"
        output = folder / f"{Path(page).stem}.output"
        with output.open("w") as file:
            code = run_script(script, folder, file.fileno())
        told = output.read_text(errors="replace")
        assert code == 0, f"{page}: the script ended with {code}\n{told[-6000:]}"
        return told

    return run


def script_of(page: Path) -> str:
    return "".join(re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))


def run_script(script: str, folder: Path, output: int) -> int:
    """Run it to its end, and end whatever it left behind."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "WINDLASS_HOME": str(folder / ".windlass")}
    process = subprocess.Popen(
        ["sh", "-eux", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        return process.wait(PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(PATIENCE_S)


def free_port() -> int:
    """Return a port below those that outgoing connections are given: none of them takes it meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
