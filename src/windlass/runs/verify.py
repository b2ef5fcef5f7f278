"""Loads the newest checkpoint of a run from every tier, each in a separate process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.cluster.launch.local_process import LocalProcess
from windlass.runs.training import RunFolder
from windlass.spec.processes import CHECKPOINT_VERIFY
from windlass.spec.run import STORE_FILE


def verify_run(folder: RunFolder, home: Path, step: int | None = None) -> dict[str, Any]:
    """Return the result for each tier of the run, and whether the run can be resumed.

    It can if every copy of the checkpoint is good. A tier may lack one that it did not have to keep.
    """
    tiers = ["local", *(["store"] if (folder.path / STORE_FILE).exists() else [])]
    found = [_verified(folder, home, tier, step) for tier in tiers]
    ok = any(one["ok"] for one in found) and all(one["ok"] or not one["there"] for one in found)
    return {"run": folder.name, "ok": ok, "tiers": found}


def _verified(folder: RunFolder, home: Path, tier: str, step: int | None) -> dict[str, Any]:
    args = [str(folder.path), "--tier", tier, *(["--step", str(step)] if step is not None else [])]
    done: dict[str, Any] = {}
    with LocalProcess("verification", CHECKPOINT_VERIFY, args, home / "logs" / "verify.log") as process:
        for event in process.events():
            done = event.get("done", done)
        process.check()
    return done
