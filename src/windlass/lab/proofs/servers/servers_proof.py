"""Proves that runs on parameter servers lose nothing when workers and servers are killed.

    local and one worker -> the same bits     three workers, without and with kills -> the same bits
    asynchronous, without and with kills -> the same data, nearly the same loss     without a log -> the bound
    HMM with kills -> the bits of the local run; each part an update -> no iteration is missing
    word2vec with kills -> the bits of the local run; each push an update -> the same pairs, each once

Every run is the command as a user types it (server_cases.py). A worker, a server and the first server get
SIGKILL, each when the journal reaches a step or a pass over the text.
"""

from __future__ import annotations

import contextlib
import hashlib
import pydoc_data.topics
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from windlass.lab.proofs.servers.server_cases import CASES, HIDDEN, ServerCase
from windlass.runs.audit import audit
from windlass.runs.tail import Tail
from windlass.runs.training import RunFolder
from windlass.spec.errors import ProcessFailed
from windlass.spec.processes import CLI
from windlass.spec.run import JOURNAL
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

WITHIN_S = 420.0
"""Timeout of one run, in seconds, on a busy machine."""


@dataclass(frozen=True)
class ServerRunResult:
    """The result of a run."""

    name: str
    digest: str
    """Digest of the model's weights."""
    loss: float
    killed: int
    replaced: int
    lost: int
    """Updates that were made and rolled back."""
    bound: int
    """Maximum number of lost updates."""
    audited: bool
    """Whether all data was used once: by the ledger, or else by the steps in the journal."""
    pairs: tuple[int, ...]
    """Training pairs of word2vec, by pass."""
    seconds: float
    staleness: dict[str, int]


def prove_server(
    home: Path, tell: Callable[[str], None], cases: Sequence[ServerCase] = CASES
) -> dict[str, Any]:
    """Make all runs. Return the figures, and the result of each."""
    folder = home / "prove" / "server"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = list(pydoc_data.topics.topics.values())[:20]
    (folder / "topics.txt").write_text("\n\n".join(texts), encoding="utf-8")
    found: dict[str, ServerRunResult] = {}
    for case in cases:
        one = found[case.name] = _made(folder, case)
        tell(
            f"{case.name}: loss {one.loss:.4f}, {one.killed} killed,"
            f" {one.lost} of at most {one.bound} updates lost, {one.seconds:.0f} s"
        )
    return {"figures": figures(found), "runs": [asdict(one) for one in found.values()]}


def figures(found: dict[str, ServerRunResult]) -> dict[str, float]:
    """Summarise: equal weights, lost updates, and the cost of asynchrony."""
    runs = found.values()
    return {
        "one_worker_equals_local": float(found["one"].digest == found["local"].digest),
        "struck_equals_calm": float(found["struck"].digest == found["calm"].digest),
        "killed": sum(one.killed for one in runs),
        "replaced": sum(one.replaced for one in runs),
        "updates_lost_with_log": sum(one.lost for one in runs if one.bound == 0),
        "updates_lost_without_log": found["unlogged"].lost,
        "bound_without_log": found["unlogged"].bound,
        "audits_that_hold": sum(one.audited for one in runs),
        "runs": len(found),
        "hmm_struck_equals_local": float(found["hmm-struck"].digest == found["hmm-local"].digest),
        "hmm_asynchronous_loss_ratio": found["hmm-async-struck"].loss / found["hmm-local"].loss,
        "word2vec_struck_equals_local": float(found["mlp-one-struck"].digest == found["mlp-local"].digest),
        "word2vec_pairs_once": float(found["mlp-async-struck"].pairs == found["mlp-local"].pairs),
        "mlp_asynchronous_loss_ratio": found["mlp-async-struck"].loss / found["mlp-local"].loss,
        "asynchronous_loss_ratio": found["async"].loss / found["calm"].loss,
        "struck_asynchronous_loss_ratio": found["async-struck"].loss / found["async"].loss,
    }


EQUAL = (
    "one_worker_equals_local", "struck_equals_calm", "hmm_struck_equals_local",
    "word2vec_struck_equals_local", "word2vec_pairs_once",
)  # fmt: skip


def is_proved(figures: dict[str, float]) -> bool:
    return (
        all(figures[name] == 1.0 for name in EQUAL)
        and figures["updates_lost_with_log"] == 0
        and figures["updates_lost_without_log"] <= figures["bound_without_log"]
        and figures["audits_that_hold"] == figures["runs"]
        and figures["replaced"] >= figures["killed"]
    )


def _made(folder: Path, case: ServerCase) -> ServerRunResult:
    begin = time.monotonic()
    (folder / f"{case.name}.toml").write_text(f'name = "{case.name}"\n{case.job}')
    run = RunFolder(folder / "home" / "runs" / case.name / "1")
    words = ["train", f"{case.name}.toml", "--home", "home", "--no-register"]
    words += [word for setting in case.settings for word in ("--set", setting)]
    words += ["--workers", str(case.workers)] if case.workers > 1 else []
    with (folder / f"{case.name}.said").open("wb") as said:
        process = subprocess.Popen([sys.executable, "-m", CLI, *words], cwd=folder, stdout=said, stderr=said)
    try:
        killed = _struck(process, run, case)
        process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        raise ProcessFailed(f"{case.name}: not finished within {WITHIN_S:.0f} s") from None
    finally:
        process.kill()
        process.wait()
    if not run.finished:
        raise ProcessFailed(
            f"{case.name}: did not finish", hint=(folder / f"{case.name}.said").read_text()[-2000:]
        )
    return _found(case, run, killed, time.monotonic() - begin)


def _struck(process: subprocess.Popen[bytes], run: RunFolder, case: ServerCase) -> int:
    """Kill each process as soon as its step is done; return how many were killed."""
    tail, step, killed, until = Tail(run.path / JOURNAL), 0, 0, time.monotonic() + WITHIN_S
    key = {"step": "step", "vectors": "epoch"}[case.paced_by]
    for after, role, number in case.strikes:
        while step < after and process.poll() is None and time.monotonic() < until:
            steps = [int(record[key]) for record in tail.read() if record.get("event") == case.paced_by]
            step = steps[-1] if steps else step
            time.sleep(0.005)
        killed += _kill(run.path, role, number)
    return killed


def _kill(folder: Path, role: str, number: int) -> bool:
    command = {"worker": "work", "server": "serve"}[role]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if str(folder) in words and command in words and words[words.index("--rank") + 1] == str(number):
                process.kill()
                return True
    return False


def _found(case: ServerCase, run: RunFolder, killed: int, seconds: float) -> ServerRunResult:
    records = list(Journal(StoreDir(run.path), JOURNAL).read())
    finished = next(record for record in records if record.get("event") == "finished")
    measured = [record for record in records if record.get("event") == "evaluation"]
    weights = (run.result / "model.safetensors").read_bytes()
    return ServerRunResult(
        name=case.name,
        digest=hashlib.blake2b(weights, digest_size=16).hexdigest(),
        loss=float(measured[-1]["loss"]),
        killed=killed,
        replaced=sum(record.get("event") in ("replaced", "went_back") for record in records),
        lost=updates_lost(records),
        bound=case.bound,
        audited=is_complete(records) if case.job is HIDDEN else audit(run.path).ok,
        pairs=tuple(record["pairs"] for record in records if record.get("event") == "vectors"),
        seconds=round(seconds, 1),
        staleness=finished.get("staleness", {}),
    )


def is_complete(records: Iterable[dict[str, Any]]) -> bool:
    """Whether a journal has every iteration, in order and each once."""
    steps = [int(record["step"]) for record in records if record.get("event") == "step"]
    return steps == list(range(1, len(steps) + 1))


def updates_lost(records: Iterable[dict[str, Any]]) -> int:
    """Count the steps in a journal that were rolled back later."""
    reached = lost = 0
    for record in records:
        if record.get("event") == "step":
            reached = max(reached, int(record["step"]))
        elif record.get("event") == "resumed":
            lost += max(0, reached - int(record["step"]))
            reached = int(record["step"])
    return lost
