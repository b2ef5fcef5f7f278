"""The asynchronous pipeline compared with 1F1B: speed, idle time, and time to a given loss.

    python -m windlass.lab.torch.async_bench FOLDER --rank R --world W --rendezvous HOST:PORT    (a contender)

A small Llama is trained on a part of Python's source, with two stages of one core each. Both contenders start
from the same weights, use the same samples in the same order and the same number of steps and learning rates.
They take turns, some steps at a time while the other waits, so a noisy machine slows both alike.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.lab.torch.train_bench import bench_corpus, planned
from windlass.parallel.device import device_of
from windlass.parallel.device_mesh import init_process_group
from windlass.parallel.schedule import bubble
from windlass.plan.local.machine import usable_cores
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.job import Job, MachineSpec, ModelSpec, Train
from windlass.spec.layout import Layout, Schedule
from windlass.spec.processes import ASYNC_BENCH
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.rank import RankInfo, add_member, apply_affinity, member_of
from windlass.spec.run import Run
from windlass.train.async_pipeline.async_trainer import AsyncTrainer
from windlass.train.event_log import EventLog
from windlass.train.loop import load_run, save_run
from windlass.train.trainer import Trainer

STAGES = 2
MICRO_BATCHES = 4
ROUNDS = 6
STEPS = 48
"""Steps of a round; at its end the asynchronous pipeline drains, as at an evaluation."""
SMOOTHED = 24
"""Steps over which a loss is averaged before it is compared."""
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "asynchronous")


@dataclass
class BenchRounds:
    """The measurements of one contender, round by round."""

    seconds: list[float] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    validation: float = float("nan")

    @property
    def step_s(self) -> float:
        """Seconds per step, without the first round, which is a warm-up."""
        return statistics.median(self.seconds[1:] or self.seconds) * len(self.seconds) / len(self.losses)


def bench_async(rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, Any]:
    """Train with both schedules in turn, and return the figures."""
    if usable_cores() < STAGES:
        raise BadInput(f"{STAGES} stages need {STAGES} cores", hint="run this bench on a larger machine")
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as scratch, ExitStack() as stack:
        runs = {s: async_run(Path(scratch), s, rounds * steps, steps) for s in SCHEDULES}
        rows = {s: stack.enter_context(_row(Path(scratch) / s, run)) for s, run in runs.items()}
        courses = {str(schedule): BenchRounds() for schedule in SCHEDULES}
        for number in range(rounds):
            for schedule in SCHEDULES if number % 2 else reversed(SCHEDULES):
                _go(rows[schedule], courses[schedule], evaluate=number == rounds - 1)
            emit(
                {
                    "event": "progress",
                    "stage": "rounds",
                    "done": number + 1,
                    "total": rounds,
                    "unit": "rounds",
                }
            )
    run = runs["1f1b"]
    return {
        "figures": figures_of(courses, run.tokens_per_step),
        "losses": {schedule: course.losses for schedule, course in courses.items()},
        "run": {"shape": run.network.model_dump(mode="json"), "parameters": run.network.parameters},
    }


def figures_of(courses: Mapping[str, BenchRounds], tokens_per_step: int) -> dict[str, float]:
    """Compare the contenders. The target loss is the one that both have reached at the end."""
    sync, flow = courses["1f1b"], courses["asynchronous"]
    pairs = list(zip(sync.seconds, flow.seconds, strict=True))
    target = max(smoothed(course.losses)[-1] for course in courses.values())
    figures = {"speed_ratio": statistics.median(a / b for a, b in pairs[1:] or pairs), "target_loss": target}
    for schedule, course in courses.items():
        needed = steps_to(target, course.losses)
        figures |= {
            f"{schedule}_tokens_per_s": tokens_per_step / course.step_s,
            f"{schedule}_idle": statistics.median(course.idle[1:] or course.idle),
            f"{schedule}_loss": smoothed(course.losses)[-1],
            f"{schedule}_validation_loss": course.validation,
            f"{schedule}_steps_to_loss": needed,
            f"{schedule}_seconds_to_loss": needed * course.step_s,
        }
    figures["1f1b_idle_in_theory"] = bubble("1f1b", STAGES, MICRO_BATCHES)
    figures["loss_ratio"] = figures["asynchronous_loss"] / figures["1f1b_loss"]
    # The ratio of times taken in turn: separate medians drift apart by noise.
    steps_ratio = figures["1f1b_steps_to_loss"] / figures["asynchronous_steps_to_loss"]
    figures["time_to_loss_ratio"] = figures["speed_ratio"] * steps_ratio
    return figures


def smoothed(losses: Sequence[float]) -> list[float]:
    """Return the mean of the newest losses after each step."""
    spans = (losses[max(0, end - SMOOTHED) : end] for end in range(1, len(losses) + 1))
    return [statistics.fmean(span) for span in spans]


def steps_to(target: float, losses: Sequence[float]) -> int:
    """Return the number of steps until the smoothed loss reached the target."""
    return next(step for step, loss in enumerate(smoothed(losses), start=1) if loss <= target)


def async_run(home: Path, schedule: Schedule, steps: int, every: int) -> Run:
    """Build a small real corpus, once, and a run of two stages on it.

    Four layers on one stage cost about as much as three and the output matrix on the other. The learning rate
    is constant after warm-up: the loss after some steps must not depend on how many follow.
    """
    job = Job(
        name="bench-async",
        corpus=bench_corpus(2048),
        model=ModelSpec(layers=7, width=128, heads=4, context=128),
        train=Train(
            steps=steps, batch_sequences=8, micro_batch_sequences=8 // MICRO_BATCHES, learning_rate=2e-3,
            warmup_steps=min(40, steps // 2), schedule="constant",
            evaluate_every=every, checkpoint_every=steps,
        ),
        layout=Layout(pp=STAGES, schedule=schedule),
        machine=MachineSpec(compile="off"),
    )  # fmt: skip
    return planned(job, home)


@contextmanager
def _row(folder: Path, run: Run) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the stages of a contender, each on its own core."""
    folder.mkdir()
    save_run(folder, run)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        rendezvous = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", ASYNC_BENCH, str(folder)]
    with ExitStack() as stack:
        processes = []
        for rank in range(STAGES):
            arguments = RankInfo(rank, STAGES, rendezvous, (rank,)).arguments
            process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        yield processes


def _go(row: Sequence[subprocess.Popen[str]], course: BenchRounds, *, evaluate: bool) -> None:
    """Run a round of a contender, and record its report."""
    for process in row:
        assert process.stdin is not None
        process.stdin.write("evaluate\n" if evaluate else "go\n")
        process.stdin.flush()
    reports = [_read_report(process) for process in row]
    course.seconds.append(max(one["seconds"] for one in reports))
    course.idle.append(statistics.fmean(one["idle"] for one in reports))
    course.losses += reports[0]["losses"]
    course.validation = reports[0].get("validation", float("nan"))


def _read_report(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        report: dict[str, Any] = json.loads(line)
        if "error" in report:
            raise ProcessFailed(f"a contender failed: {report['error']['message']}")
        if "losses" in report:
            return report
    raise ProcessFailed(f"a contender ended with code {process.wait()}")


def main(argv: list[str]) -> None:
    """One stage of a contender: a round for every line on standard input."""
    parser = EntrypointParser(prog="python -m windlass.lab.torch.async_bench")
    parser.add_argument("folder", type=Path)
    add_member(parser)
    args = parser.parse_args(argv)
    member, run = member_of(args), load_run(args.folder)
    apply_affinity(member)
    record = EventLog(args.folder, quiet=True, rank=member.rank)
    with init_process_group(member, device_of(run.job.machine)):
        trainer = (AsyncTrainer if run.layout.asynchronous else Trainer)(run, args.folder, record, member)
        for line in sys.stdin:
            report = _round(trainer, run.evaluate_every)
            if line.startswith("evaluate"):
                report["validation"] = trainer.evaluate(None).loss
            emit(report)
    record.close()


def _round(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Take some steps. A process that waits for its neighbour uses no CPU: idle time is unused CPU time."""
    begin, begin_busy = time.perf_counter(), time.process_time()
    losses = [trainer.train_step().loss for _ in range(steps)]
    seconds, busy = time.perf_counter() - begin, time.process_time() - begin_busy
    return {"seconds": seconds, "idle": 1 - busy / seconds, "losses": losses}


if __name__ == "__main__":
    run_entrypoint(main)
