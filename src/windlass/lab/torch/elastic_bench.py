"""Overhead of fault tolerance without failures: elastic against plain training, and the stall of a save.

Both are started as a user starts them, in turn, on the same run: one process per core. The time between
journal records is compared, which both write alike. Other load only makes steps longer, by far more than the
measured difference; so the fastest quarter of all steps is compared, each of which includes several
heartbeats of every worker. The CPU time of all processes is reported, too. Plain ranks are pinned to a core
each and elastic workers are not; here both are unpinned, so that only the cost of fault tolerance differs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from windlass.lab.torch.train_bench import bench_corpus, planned
from windlass.plan.local.machine import usable_cores
from windlass.spec.errors import ProcessFailed
from windlass.spec.job import Checkpoint, Job, MachineSpec, Train
from windlass.spec.layout import Layout
from windlass.spec.processes import CLI
from windlass.spec.protocol.entrypoint import emit
from windlass.spec.read import job_text
from windlass.spec.run import JOURNAL
from windlass.spec.shape import DecoderShape, Network
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir
from windlass.train.loop import save_run

STEP_SHAPE = DecoderShape(
    vocabulary=8192, context=128, layers=4, width=256, heads=4, kv_heads=4, ffn_width=688, tied=True
)
"""Small, so that the cost per step weighs more than in real runs."""
SAVE_SHAPE = DecoderShape(
    vocabulary=32000, context=128, layers=12, width=768, heads=12, kv_heads=12, ffn_width=2048, tied=True
)
"""110 million weights: with their moments 1.3 GB to save."""
BATCH_SEQUENCES = 8
VOCABULARY = 8192
FOREVER = 10**6
WARM_STEPS, STEPS = 5, 30
SAVE_EVERY_S = 30.0
SAVES = 3
START_S = 300.0
END_S = 60.0
LOOK_EVERY_S = 0.1


def bench_elastic(
    repeats: int,
    *,
    step_shape: Network = STEP_SHAPE,
    save_shape: Network = SAVE_SHAPE,
    save_every_s: float = SAVE_EVERY_S,
    saves: int = SAVES,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Measure, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch:
        pairs = [_pair(Path(scratch), step_shape, steps, number, repeats) for number in range(repeats)]
        stall_s, step_s = _stall(Path(scratch), save_shape, save_every_s, saves)
    plain, elastic = (Paces.of(both) for both in zip(*pairs, strict=True))
    return {
        "figures": {
            "cost_when_calm": elastic.quick_s / plain.quick_s - 1,
            "cpu_cost_when_calm": elastic.cpu_s / plain.cpu_s - 1,
            "plain_step_s": plain.quick_s,
            "elastic_step_s": elastic.quick_s,
            "checkpoint_stall_steps": stall_s / step_s,
            "checkpoint_stall_s": stall_s,
            "checkpoint_step_s": step_s,
        },
        "median_step_s": [[statistics.median(p.steps_s), statistics.median(e.steps_s)] for p, e in pairs],
        "workers": usable_cores(),
        "parameters": {"step": step_shape.parameters, "save": save_shape.parameters},
    }


@dataclass(frozen=True)
class Paces:
    """Durations of the steps of a run, and the CPU time of all its processes."""

    steps_s: list[float]
    cpu_s: float
    """CPU seconds per step."""

    @classmethod
    def of(cls, several: Sequence[Paces]) -> Paces:
        steps_s = [seconds for one in several for seconds in one.steps_s]
        return cls(steps_s, statistics.median(one.cpu_s for one in several))

    @property
    def quick_s(self) -> float:
        """The mean of the fastest quarter."""
        return statistics.fmean(sorted(self.steps_s)[: max(1, len(self.steps_s) // 4)])


def _pair(home: Path, shape: Network, steps: int, number: int, repeats: int) -> tuple[Paces, Paces]:
    """Measure a plain and an elastic run; the order alternates from pair to pair."""
    found: dict[bool, Paces] = {}
    for elastic in (False, True) if number % 2 == 0 else (True, False):
        with _training(home, _job("steps"), shape, elastic=elastic) as watch:
            watch.await_records("step", 1)
            watch.let_go()
            before, before_s = len(watch.await_records("step", WARM_STEPS)), watch.cpu_s()
            records = watch.await_records("step", before + steps)
            cpu_s = (watch.cpu_s() - before_s) / (len(records) - before)
        times = [float(record["time"]) for record in records[before - 1 :]]
        found[elastic] = Paces([b - a for a, b in itertools.pairwise(times)], cpu_s)
    emit({"event": "progress", "stage": "pairs", "done": number + 1, "total": repeats, "unit": "pairs"})
    return found[False], found[True]


def _stall(home: Path, shape: Network, every_s: float, saves: int) -> tuple[float, float]:
    """Return how long training stalls at a save, and the seconds per step; the first save is left out."""
    emit({"event": "note", "message": f"saving {shape.parameters / 1e6:.0f}M weights every {every_s:g} s"})
    job = _job("saves").model_copy(update={"checkpoint": Checkpoint(seconds=every_s)})
    with _training(home, job, shape, elastic=True) as watch:
        stalls = [float(r["stall_s"]) for r in watch.await_records("checkpoint", saves + 1)][1:]
        times = [float(r["time"]) for r in watch.await_records("step", 2)]
    return statistics.median(stalls), statistics.median(b - a for a, b in itertools.pairwise(times))


class RunWatch:
    """A run in another process, and its journal so far."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], said: Path) -> None:
        self._journal = Journal(StoreDir(folder), JOURNAL)
        self._process = process
        self._said = said

    def let_go(self) -> None:
        """Unpin every thread of the run from its core."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            for thread in process.threads():
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(thread.id, os.sched_getaffinity(0))

    def cpu_s(self) -> float:
        """Return the CPU time of all its processes so far."""
        started = psutil.Process(self._process.pid)
        spent = [process.cpu_times() for process in (started, *started.children(recursive=True))]
        return sum(times.user + times.system for times in spent)

    def await_records(self, event: str, count: int) -> list[dict[str, Any]]:
        """Wait for `count` records of a kind, each within a timeout; return them."""
        found: list[dict[str, Any]] = []
        until = time.monotonic() + START_S
        while len(found) < count:
            known = len(found)
            found = [record for record in self._journal.read() if record.get("event") == event]
            if len(found) > known:
                until = time.monotonic() + START_S
            if self._process.poll() is not None or time.monotonic() > until:
                raise ProcessFailed(
                    f"a run wrote {len(found)} of {count} {event} records, then none for {START_S:.0f} s",
                    hint=self._said.read_text(errors="replace")[-2000:],
                )
            time.sleep(LOOK_EVERY_S)
        return found


@contextlib.contextmanager
def _training(home: Path, job: Job, shape: Network, *, elastic: bool) -> Iterator[RunWatch]:
    """Start a new run of the job on all cores, with the command that a user types, and stop it afterwards."""
    folder = home / "runs" / job.name / str(len(list((home / "runs" / job.name).glob("*"))) + 1)
    folder.mkdir(parents=True)
    save_run(folder, planned(job, home, start_shape=shape))
    file, said = folder / "job.toml", folder / "said.txt"
    file.write_text(job_text(job))
    command = [sys.executable, "-m", CLI, "train", str(file), "--home", str(home), "--resume"]
    command += [
        "--json",
        "--no-register",
        "--workers",
        str(usable_cores()),
        *(["--elastic"] if elastic else []),
    ]
    with said.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield RunWatch(folder, process, said)
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _job(name: str) -> Job:
    """A run that only trains and, if configured, saves."""
    often = {"evaluate_every": FOREVER, "checkpoint_every": FOREVER, "log_every": 1}
    return Job(
        name=name,
        corpus=bench_corpus(VOCABULARY),
        train=Train(steps=FOREVER, batch_sequences=BATCH_SEQUENCES, **often),
        layout=Layout(dp=usable_cores()),
        machine=MachineSpec(compile="off"),
    )
