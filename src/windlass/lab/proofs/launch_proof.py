"""Proves that the death of a rank ends a run soon, with an intact checkpoint and no processes left.

    start the real launcher on a small job -> kill -9 a random rank at a random time -> inspect what is left

Every start resumes from the checkpoint that the last kill left, so a torn one would be noticed twice: by its
manifest, and by the next start.
"""

from __future__ import annotations

import contextlib
import pydoc_data.topics
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from windlass.runs.training import RunFolder
from windlass.spec.errors import Damaged, ProcessFailed
from windlass.spec.processes import CLI
from windlass.spec.run import CHECKPOINTS, JOURNAL
from windlass.store.journal import Journal
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir

PROMISED_S = 5.0
"""Maximum seconds from the death of a rank to the end of its launcher."""
START_S = 180.0
"""Seconds for ranks to start and train, on a busy machine."""
EARLY_SHARE = 0.25
"""Share of kills while ranks load and rendezvous; the others come while they train and save."""
MOMENT_S = 3.0
JOB = """
name = "kills"
[corpus]
sources = ["topics.txt"]
document = "paragraph"
validation_share = 0.2
[corpus.tokenizer]
vocabulary = 400
[model]
layers = 2
width = 32
heads = 2
context = 64
[train]
steps = 1000000
batch_sequences = 8
evaluate_every = 1000000
checkpoint_every = 5
[machine]
compile = "off"
"""


@dataclass(frozen=True)
class RankKill:
    """The outcome of one kill."""

    rank: int
    training: bool
    """Whether it came while the ranks trained; else while they started."""
    end_s: float
    """From the kill to the end of the launcher."""
    named: bool
    """Whether the launcher reported which rank died and how."""
    orphans: int
    whole: bool
    step: int
    """Step of the newest checkpoint."""


def prove_kills(
    home: Path, times: int, tell: Callable[[str], None], *, workers: int = 2, seed: int = 1
) -> dict[str, Any]:
    """Kill a rank `times` times. Return the figures, and each kill."""
    folder = _prepared(home / "prove" / "kills")
    rng, kills = random.Random(seed), list[RankKill]()
    with _launcher(folder, workers, resume=False) as launcher:
        _await(launcher, lambda: _run(folder).step > 0, "write a checkpoint")
        _stopped(launcher)
    for number in range(1, times + 1):
        kill = _kill_once(folder, workers, rng)
        kills.append(kill)
        phase = "training" if kill.training else "starting"
        tell(f"kill {number}: rank {kill.rank} while {phase}: ended in {kill.end_s:.2f} s, step {kill.step}")
    with _launcher(folder, workers, resume=True) as launcher:
        before = _run(folder).step
        _await(launcher, lambda: _run(folder).step > before, f"resume from step {before}")
        _stopped(launcher)
    return {"figures": figures(kills), "kills": [kill.__dict__ for kill in kills]}


def figures(kills: Sequence[RankKill]) -> dict[str, float]:
    """Summarise the kills."""
    return {
        "kills": len(kills),
        "kills_while_training": sum(kill.training for kill in kills),
        "ended_within_5_s": sum(kill.end_s <= PROMISED_S for kill in kills),
        "worst_end_s": round(max((kill.end_s for kill in kills), default=0.0), 3),
        "named": sum(kill.named for kill in kills),
        "orphans": sum(kill.orphans for kill in kills),
        "whole_checkpoints": sum(kill.whole for kill in kills),
        "steps": max((kill.step for kill in kills), default=0),
    }


def _kill_once(folder: Path, workers: int, rng: random.Random) -> RankKill:
    """Resume the run, kill one of its ranks, and inspect what is left."""
    rank, training, moment_s = rng.randrange(workers), rng.random() >= EARLY_SHARE, rng.uniform(0, MOMENT_S)
    resumes, step = _resumes(folder), _run(folder).step
    with _launcher(folder, workers, resume=True) as launcher:
        _await(launcher, lambda: len(_ranks(folder)) == workers, "start all ranks")
        if training:
            _await(launcher, lambda: len(_resumes(folder)) > len(resumes), "resume")
        time.sleep(moment_s)
        _victim(folder, rank).kill()
        end_s = _seconds_to_end(launcher)
    left = _ranks(folder)
    for process in left.values():
        process.kill()
    resumed = _resumes(folder)[len(resumes) :]
    whole = _newest_is_whole(folder) and resumed in ([], [step])
    named = f"rank {rank} was killed by SIGKILL" in (folder / "said.txt").read_text()
    return RankKill(rank, training, round(end_s, 3), named, len(left), whole, _run(folder).step)


def _prepared(folder: Path) -> Path:
    """Make a directory with a small text and a job file for it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    texts = list(pydoc_data.topics.topics.values())[:20]
    (folder / "topics.txt").write_text("\n\n".join(texts), encoding="utf-8")
    (folder / "job.toml").write_text(JOB)
    return folder


@contextlib.contextmanager
def _launcher(folder: Path, workers: int, *, resume: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command as a user types it; its output goes to said.txt."""
    words = ["train", "job.toml", "--home", str(folder / "home"), "--workers", str(workers)]
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", CLI, *words, *(["--resume"] if resume else [])],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _await(launcher: subprocess.Popen[bytes], seen: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + START_S
    while not seen():
        if launcher.poll() is not None or time.monotonic() > until:
            raise ProcessFailed(f"the launcher did not {what} within {START_S:.0f} s")
        time.sleep(0.02)


def _stopped(launcher: subprocess.Popen[bytes]) -> None:
    """Stop a run gracefully."""
    launcher.send_signal(signal.SIGINT)
    _seconds_to_end(launcher)


def _seconds_to_end(launcher: subprocess.Popen[bytes]) -> float:
    """Wait for the launcher; the timeout is far above the guaranteed time."""
    begin = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.wait(12 * PROMISED_S)
    return time.monotonic() - begin


def _run(folder: Path) -> RunFolder:
    return RunFolder(folder / "home" / "runs" / "kills" / "1")


def _ranks(folder: Path) -> dict[int, psutil.Process]:
    """Return the live ranks of the run, regardless of their parent process."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if str(_run(folder).path) in words and "--rank" in words and _lives(process):
                found[int(words[words.index("--rank") + 1])] = process
    return found


def _victim(folder: Path, rank: int) -> psutil.Process:
    found = _ranks(folder).get(rank)
    if found is None:
        said = (folder / "said.txt").read_text()
        raise ProcessFailed(f"rank {rank} ended before it was killed", hint=said)
    return found


def _lives(process: psutil.Process) -> bool:
    return bool(process.status() != psutil.STATUS_ZOMBIE)


def _resumes(folder: Path) -> list[int]:
    """Return the steps from which the run resumed, by its journal."""
    journal = Journal(StoreDir(_run(folder).path), JOURNAL)
    return [int(event["step"]) for event in journal.read() if event.get("event") == "resumed"]


def _newest_is_whole(folder: Path) -> bool:
    newest = _run(folder).path / CHECKPOINTS / f"step-{_run(folder).step:08d}"
    try:
        verify(StoreDir(newest))
    except Damaged:
        return False
    return True
