"""The engine's handle on the trial process, in which grammars are compiled first.

The process starts with the first grammar, and again after a grammar that killed it. Its standard error is
discarded: a library's crash message may quote what a client sent.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from windlass.spec.processes import GRAMMAR_TRIAL
from windlass.spec.protocol.wire import Grammar

START_S = 60.0
PATIENCE_S = 5.0
READ_BYTES = 1 << 16


class GrammarTrial:
    """Sends one grammar after the other to the process; for use by one thread."""

    def __init__(
        self, model: Path, vocabulary: int, stop_tokens: Sequence[int], *, patience_s: float = PATIENCE_S
    ) -> None:
        self._command = [
            sys.executable,
            "-m",
            GRAMMAR_TRIAL,
            "--model",
            str(model),
            "--vocabulary",
            str(vocabulary),
        ]
        if stop_tokens:
            self._command += ["--stop", *map(str, stop_tokens)]
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> int | None:
        """Return the id of the process, if one runs."""
        return None if self._process is None else self._process.pid

    def why_not(self, grammar: Grammar) -> str | None:
        """Return why a grammar cannot be used, or None."""
        try:
            process = self._process or self._start()
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(grammar) + b"\n")
            process.stdin.flush()
            reason: str | None = _event(process, self._patience_s)["reason"]
        except TimeoutError:
            self.close()
            return f"the grammar takes longer than {self._patience_s:g} s to compile"
        except (OSError, KeyError):
            self.close()
            return "the grammar takes more memory to compile than is allowed"
        return reason

    def close(self) -> None:
        """Kill the process."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "RAYON_NUM_THREADS": "1"},
        )
        _event(self._process, START_S)
        return self._process


def _event(process: subprocess.Popen[bytes], patience_s: float) -> dict[str, Any]:
    """Read one line of JSON; raise TimeoutError if it does not come in time."""
    assert process.stdout is not None
    until, line = time.monotonic() + patience_s, b""
    while not line.endswith(b"\n"):
        left = until - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise TimeoutError
        piece = os.read(process.stdout.fileno(), READ_BYTES)
        if not piece:
            raise BrokenPipeError
        line += piece
    event: dict[str, Any] = json.loads(line)
    return event
