"""What every process that we start promises to whoever started it.

Events go to standard output, one JSON object a line; everything else goes to standard error. An error
of ours is the last event, `{"error": {...}}`, and becomes the exit code. A process whose parent dies
ends too, so nothing is left behind; one that a cluster keeps outlives whoever started it, and leaves its
exit code where the next keeper finds it.
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
"""Environment variable by which a process learns who started it, even if that one is gone already."""
KEPT = "kept"
"""The value of PARENT for a process that belongs to nobody, and is found again by what is written of it."""
EXIT = "WINDLASS_EXIT"
"""Environment variable that names the file for the exit code: only a parent can ask the system for it."""
_PR_SET_PDEATHSIG = 1
_LOOK_EVERY_S = 0.5


class EntrypointParser(argparse.ArgumentParser):
    """Says a wrong argument as every other mistake is said."""

    def error(self, message: str) -> NoReturn:
        raise AskedWrongly(message, hint=self.format_usage().strip())


def named_path(text: str) -> tuple[str, Path]:
    """Read an argument NAME=PATH."""
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=PATH")
    return name, Path(path)


def emit(event: dict[str, Any]) -> None:
    """Tell the parent something."""
    sys.stdout.write(json.dumps(event, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def run_entrypoint(main: Callable[[list[str]], int | None]) -> NoReturn:
    """Run a process from its arguments to its exit code."""
    die_with_parent()
    left, code = os.environ.pop(EXIT, None), 1
    try:
        code = exit_code_of(main, sys.argv[1:])
        sys.stdout.flush()
    finally:
        if left is not None:
            Path(left).write_text(str(code))
    sys.exit(code)


def exit_code_of(main: Callable[[list[str]], int | None], argv: list[str]) -> int:
    """Run `main`; an error of ours is told to the parent and becomes its exit code."""
    try:
        return main(argv) or 0
    except WindlassError as error:
        emit({"error": error_event(error)})
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1  # nobody listens any more
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
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit(1)


def end_after_parent(grace_s: float) -> None:
    """End this process by force `grace_s` seconds after its parent ended, whatever it does then.

    For who waits where no signal is heard: Python's handlers run only between two steps of its main
    thread, and that one may wait in a library for a peer that is gone.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="end-after-parent", daemon=True).start()
