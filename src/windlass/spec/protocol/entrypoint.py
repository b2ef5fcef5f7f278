"""The contract between a Windlass process and its parent.

Events go to standard output, one JSON object a line; everything else goes to standard error. A WindlassError
is the last event, `{"error": {...}}`, and becomes the exit code. A process whose parent dies ends too, so
nothing is left behind. A process that a cluster backend manages outlives its parent, and writes its exit code
to a file, where the next backend process finds it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from windlass.spec.errors import AskedWrongly, WindlassError

INTERRUPTED = 130
PARENT = "WINDLASS_PARENT"
"""Environment variable with the process id of the parent, which may have died already."""
KEPT = "kept"
"""The value of PARENT for a process that outlives its parent and is found again by its records."""
EXIT = "WINDLASS_EXIT"
"""Environment variable that names a file for the exit code, which the kernel reports to the parent only."""
_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.5


class EntrypointParser(argparse.ArgumentParser):
    """Raises AskedWrongly on a wrong argument, so that it is reported like every other error."""

    def error(self, message: str) -> NoReturn:
        raise AskedWrongly(message, hint=self.format_usage().strip())


def named_path(text: str) -> tuple[str, Path]:
    """Read an argument NAME=PATH."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=PATH")
    return name, Path(path)


def emit(event: dict[str, Any]) -> None:
    """Send an event to the parent."""
    sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def run_entrypoint(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Run a process from its arguments to its exit code."""
    die_with_parent()
    exit_file, code = os.environ.pop(EXIT, None), 1
    try:
        code = exit_code_of(main, sys.argv[1:])
        sys.stdout.flush()
    finally:
        if exit_file is not None:
            Path(exit_file).write_text(str(code))
    sys.exit(code)


def exit_code_of(main: Callable[[list[str]], int | None], argv: list[str]) -> int:
    """Run `main`; a WindlassError is reported to the parent and becomes the exit code."""
    try:
        return main(argv) or 0
    except WindlassError as error:
        emit({"error": error_event(error)})
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1  # the parent closed the pipe
    except MemoryError:
        emit(
            {
                "error": {
                    "kind": "ProcessFailed",
                    "message": "out of memory",
                    "hint": "use a smaller model or batch",
                }
            }
        )
        return 1


def error_event(error: WindlassError) -> dict[str, Any]:
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint}


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends (Linux; elsewhere nothing happens)."""
    parent = os.environ.pop(PARENT, str(os.getppid()))
    if sys.platform != "linux" or parent == KEPT:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before prctl
        sys.exit(1)


def end_after_parent(grace_s: float) -> None:
    """Kill this process `grace_s` seconds after its parent ended, whatever it is doing.

    For processes that cannot handle a signal: Python runs handlers only between two bytecodes of the main
    thread, and that thread may wait in a library for a peer that is gone.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="end-after-parent", daemon=True).start()
