"""Proves that a save may be killed at any byte: the newest complete checkpoint always loads.

    a real writer saves -> it kills itself with SIGKILL inside a write, at a random byte -> another loads

The writer is the code that runs use to save, in a process forked for each save.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.spec.processes import SAVE_CRASH_PROOF


def prove_saves(home: Path, times: int, tell: Callable[[str], None], *, seed: int = 1) -> dict[str, Any]:
    """Kill a save `times` times. Return the figures, and each kill."""
    folder = home / "prove" / "saves"
    shutil.rmtree(folder, ignore_errors=True)
    kills: list[dict[str, Any]] = []
    done: dict[str, Any] = {}
    args = [str(folder), "--times", str(times), "--seed", str(seed)]
    with LocalProcess("saves", SAVE_CRASH_PROOF, args, home / "logs" / "saves.log") as process:
        for event in process.events():
            if "kill" in event:
                kills.append(event["kill"])
                tell(_words(len(kills), event["kill"]))
            done = event.get("done", done)
        process.check()
    return {"figures": done, "kills": kills}


def is_proved(figures: dict[str, Any]) -> bool:
    """Whether every save was killed as intended, and every checkpoint loaded afterwards."""
    return bool(figures["saves"] == figures["killed"] == figures["loaded"] == figures["newest_whole"])


def _words(number: int, kill: dict[str, Any]) -> str:
    verdict = "loads" if kill["loaded"] else "DOES NOT LOAD"
    return f"kill {number}: saving step {kill['step']} at byte {kill['at']}: step {kill['newest']} {verdict}"
