"""Measures this machine in separate processes, and merges their results.

A setting is a number of processes, each with its own cores, that measure at the same time: a process with a
single core, a process with all cores, a process per core. The slowest process of a setting counts, because
processes wait for each other in every step of a run. All settings are measured twice and the faster time
counts: other load on the machine changes within the minute between.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from windlass.cluster.launch.cores import divide_cores, own_cores
from windlass.cluster.launch.launcher import free_port
from windlass.cluster.launch.local_process import LocalProcess
from windlass.plan.local.machine import measure_machine
from windlass.plan.local.profile import ProbeSetting, Profile, ResidentMemory, this_machine, this_software
from windlass.spec.errors import StoreFailed
from windlass.spec.processes import PROBE
from windlass.spec.protocol.progress import Progress, Report
from windlass.spec.protocol.rank import RankInfo

SWEEPS = 2
STAGES = 6
"""Progress events of one measuring process."""
MAX_PROCESSES = 8
"""More processes share the memory bandwidth as these do, so they are not measured."""
DISK_BYTES, QUICK_DISK_BYTES = 256 << 20, 64 << 20
PIECE_BYTES = 4 << 20
HOST = "127.0.0.1"


def probe(home: Path, report: Report, *, quick: bool = False) -> Profile:
    """Measure what a plan for this machine needs."""
    cores, sweeps = own_cores(), 1 if quick else SWEEPS
    wanted = list(settings_for(len(cores)))
    work = _Work(home, report, total=sweeps * STAGES * len(wanted) + 2, quick=quick)
    swept, peaks = [], [measure_machine().peak_flops]
    for _ in range(sweeps):
        swept.append([work.setting(processes, threads, cores) for processes, threads in wanted])
        peaks.append(measure_machine().peak_flops)
    results: list[dict[str, Any]] = merged(min, swept)
    alone = work.start([RankInfo(cores=tuple(cores))], "--held")[0]
    written = work.disk()
    return Profile(
        made_at=time.time(),
        machine=this_machine(),
        cores=len(cores),
        software=this_software(),
        peak_flops=max(peaks),
        settings=tuple(ProbeSetting.model_validate(_setting(one)) for one in results),
        held=tuple(ResidentMemory.model_validate(one["held"]) for one in (*results, alone)),
        start_s=min(one["start_s"] for one in (*results, alone)),
        **written,
    )


def settings_for(cores: int) -> Iterator[tuple[int, int]]:
    """Yield (processes, threads per process): the extremes between which other divisions lie."""
    yield 1, 1
    if cores > 1:
        yield 1, cores
        processes = 1 << (min(cores, MAX_PROCESSES).bit_length() - 1)
        yield processes, 1


def merged(choose: Callable[[Sequence[float]], float], results: Sequence[Any]) -> Any:
    """Merge results of the same structure: `choose` picks each number among those of all results."""
    first = results[0]
    if isinstance(first, dict):
        return {key: merged(choose, [one[key] for one in results]) for key in first}
    if isinstance(first, list):
        return [merged(choose, each) for each in zip(*results, strict=True)]
    return first if isinstance(first, str) else choose(results)


class _Work:
    """Runs the processes of a probe, one setting after the other, and reports progress."""

    def __init__(self, home: Path, report: Report, *, total: int, quick: bool) -> None:
        self._home, self._report, self._total, self._quick = home, report, total, quick
        self._done = 0

    def setting(self, processes: int, threads: int, cores: Sequence[int]) -> dict[str, Any]:
        shares = divide_cores(cores, processes, threads) if processes > 1 else [tuple(cores[:threads])]
        meet = f"{HOST}:{free_port(HOST, os.getpid() + time.monotonic_ns())}" if processes > 1 else ""
        members = [RankInfo(rank, processes, meet, own) for rank, own in enumerate(shares)]
        found: dict[str, Any] = merged(max, self.start(members))
        return found

    def start(self, members: Sequence[RankInfo], *more: str) -> list[dict[str, Any]]:
        """Run one process for each member; return their results."""
        options = [*more, *(["--quick"] if self._quick else [])]
        with ExitStack() as stack:
            processes = [
                stack.enter_context(
                    LocalProcess(
                        "probe", PROBE, [*options, *member.arguments], self._home / "logs" / "probe.log"
                    )
                )
                for member in members
            ]
            done = self._followed(processes[0])
            results = [done, *(process.result() for process in processes[1:])]
        self._step(1 if more else 0)
        return results

    def disk(self) -> dict[str, float]:
        size = QUICK_DISK_BYTES if self._quick else DISK_BYTES
        found = measure_disk(self._home / "probe.tmp", size)
        self._step(1)
        return found

    def _followed(self, process: LocalProcess) -> dict[str, Any]:
        done: dict[str, Any] = {}
        for event in process.events():
            self._step(1 if event.get("event") == "measured" else 0)
            done = event.get("done", done)
        process.check()
        return done

    def _step(self, steps: int) -> None:
        self._done += steps
        self._report(Progress("probe", self._done, self._total, "measurements"))


def measure_disk(path: Path, size: int) -> dict[str, float]:
    """Return how fast a file is written through to the disk and read again, and what one fsync costs.

    The read may come from the page cache, as that of a recent checkpoint does.
    """
    piece = os.urandom(PIECE_BYTES)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb", buffering=0) as file:
            begin = time.perf_counter()
            for _ in range(size // PIECE_BYTES):
                file.write(piece)
            os.fsync(file.fileno())
            written = time.perf_counter()
            file.write(b"one more")
            os.fsync(file.fileno())
            synced = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while file.read(PIECE_BYTES):
                pass
        read = time.perf_counter()
    except OSError as error:
        raise StoreFailed(f"{path}: {error.strerror}", hint="give a --home with free space") from None
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return {
        "write_bytes_s": size / (written - begin),
        "fsync_s": synced - written,
        "read_bytes_s": size / (read - synced),
    }


def _setting(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key in ProbeSetting.model_fields}
