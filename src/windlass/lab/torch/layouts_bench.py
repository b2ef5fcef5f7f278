"""The speed of layouts on this machine: throughput, memory, network bytes, and idle time.

The Llama of lab/torch/train_bench.py on all cores, as one process with a thread per core, and divided among
processes with one core each. In every round each contender takes one step while the others
wait, so a noisy machine slows all alike; ratios are taken round by round and their median counts.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from windlass.lab.torch.train_bench import bench_run
from windlass.parallel.partition import cut_model, loads_of
from windlass.parallel.schedule import bubble
from windlass.plan.hyperparameters import adapted, micro_batches_of
from windlass.plan.local.machine import usable_cores
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.layout import check_layout, parse_layout
from windlass.spec.processes import TRAIN_BENCH_WORKER
from windlass.spec.protocol.entrypoint import emit
from windlass.spec.protocol.rank import RankInfo
from windlass.spec.run import Run
from windlass.train.loop import save_run

WARM_STEPS = 2
ALONE = "threads"
LAYOUTS = {
    ALONE: "",
    "dp2": "dp=2",
    "sharded2": "sharded=2",
    "tp2": "tp=2",
    "pp2": "pp=2,micro_batches=8",
    "pp2_zero_bubble": "pp=2,micro_batches=8,schedule=zbv,virtual=2",
}

Facts = dict[str, list[float]]
"""The reports of a contender, round by round: seconds, memory_bytes, sent_bytes, idle_share."""


def bench_layouts(repeats: int, layouts: Mapping[str, str] = LAYOUTS) -> dict[str, Any]:
    """Measure, and return the figures."""
    cores = usable_cores()
    widest = max(parse_layout(layout).world for layout in layouts.values())
    if widest > cores:
        raise BadInput(
            f"{widest} processes on {cores} cores would only wait for each other",
            hint="run this bench on a machine with a core for each process",
        )
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch, ExitStack() as stack:
        run = bench_run(Path(scratch))
        runs = {name: laid_out(run, layout) for name, layout in layouts.items()}
        teams = {
            name: stack.enter_context(_team(Path(scratch) / name, planned, widest))
            for name, planned in runs.items()
        }
        facts = _rounds(teams, repeats)
    return {"figures": _figures(runs, facts), "rounds": facts, "parameters": run.network.parameters}


def laid_out(run: Run, layout: str) -> Run:
    """Return the run under a layout, including the micro-batches of a pipeline."""
    wanted = parse_layout(layout)
    job = run.job.model_copy(update={"layout": wanted})
    planned = adapted(run.model_copy(update={"job": job}), wanted, step=0)
    check_layout(wanted, planned.network, planned.batch_sequences, planned.micro_batch_sequences)
    return planned


class BenchWorkers:
    """The processes of one contender, waiting for the next step."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self._processes = processes
        for process in processes:
            _read_report(process)

    def step(self) -> dict[str, float]:
        """Take one step on all processes; return the largest time and memory of any of them."""
        before = _sent_bytes()
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        reports = [_read_report(process) for process in self._processes]
        facts = {key: max(one[key] for one in reports) for key in reports[0] if key != "idle_share"}
        facts["sent_bytes"] = float(_sent_bytes() - before)
        if "idle_share" in reports[0]:
            facts["idle_share"] = statistics.mean(one["idle_share"] for one in reports)
        return facts


@contextmanager
def _team(folder: Path, run: Run, cores: int) -> Iterator[BenchWorkers]:
    """Start a contender's processes, each with its share of the cores."""
    folder.mkdir()
    save_run(folder, run)
    world = run.layout.world
    with socket.create_server(("127.0.0.1", 0)) as probe:
        rendezvous = f"127.0.0.1:{probe.getsockname()[1]}"
    processes = []
    for rank in range(world):
        own = tuple(range(rank * cores // world, (rank + 1) * cores // world))
        member = RankInfo(rank, world, rendezvous, own)
        command = [sys.executable, "-m", TRAIN_BENCH_WORKER, str(folder), *member.arguments]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    try:
        yield BenchWorkers(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _rounds(teams: Mapping[str, BenchWorkers], repeats: int) -> dict[str, Facts]:
    facts: dict[str, Facts] = {name: {} for name in teams}
    for number in range(1 - WARM_STEPS, repeats + 1):
        for name, team in teams.items():
            for key, value in team.step().items():
                facts[name].setdefault(key, []).append(value)
        done = max(0, number)
        emit({"event": "progress", "stage": "rounds", "done": done, "total": repeats, "unit": "rounds"})
    return {name: {key: values[WARM_STEPS:] for key, values in f.items()} for name, f in facts.items()}


def _figures(runs: Mapping[str, Run], facts: Mapping[str, Facts]) -> dict[str, float]:
    figures: dict[str, float] = {}
    tokens = runs[ALONE].tokens_per_step
    for name, measured in facts.items():
        if name != ALONE:
            pairs = zip(facts[ALONE]["seconds"], measured["seconds"], strict=True)
            figures[f"{name}_vs_threads"] = statistics.median(a / b for a, b in pairs)
        figures[f"{name}_tokens_per_s"] = tokens / statistics.median(measured["seconds"])
        figures[f"{name}_memory_bytes"] = measured["memory_bytes"][-1]
        figures[f"{name}_bytes_per_step"] = statistics.median(measured["sent_bytes"])
        if "idle_share" in measured:
            figures[f"{name}_idle"] = statistics.median(measured["idle_share"])
            figures |= {f"{name}_{what}": share for what, share in _idle_in_theory(runs[name]).items()}
    if {"sharded2", "dp2"} <= facts.keys():
        figures["sharded2_memory_vs_dp2"] = figures["sharded2_memory_bytes"] / figures["dp2_memory_bytes"]
    return figures


def _idle_in_theory(run: Run) -> dict[str, float]:
    """Return the share of idle time by the schedule alone, and with unequal stages.

    While the slowest stage computes, the others wait for it: with a large vocabulary that is the last one.
    """
    layout = run.layout
    micro = micro_batches_of(layout, run.batch_sequences, run.micro_batch_sequences)
    schedule = bubble(layout.schedule, layout.pp, micro, layout.virtual)
    loads = loads_of(cut_model(run.network, layout), layout)
    return {
        "bubble_in_theory": schedule,
        "idle_in_theory": 1 - (1 - schedule) * statistics.mean(loads) / max(loads),
    }


def _read_report(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            report: dict[str, Any] = json.loads(line)
            if "error" in report:
                raise ProcessFailed(f"a contender failed: {report['error']['message']}")
            return report
    raise ProcessFailed(f"a contender ended with code {process.wait()}")


def _sent_bytes() -> int:
    """Return the bytes sent over the loopback interface, which all processes of this machine use."""
    names = [name for name in psutil.net_if_stats() if name.startswith("lo")]
    counters = psutil.net_io_counters(pernic=True)
    return sum(counters[name].bytes_sent for name in names if name in counters)
