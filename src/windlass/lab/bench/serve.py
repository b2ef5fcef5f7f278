"""`windlass bench serve`: our engine and every installed peer on the same tasks, in one run.

    for each model and precision: load all contenders
        for each concurrency: ours, a peer, ours, another peer, ... ours

Only one runs at a time. The machine is shared and its speed drifts within minutes, so a peer is compared with
the mean of our runs right before and after it. The best peer is the one with the lowest ratio for us, and
that ratio is the figure.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from windlass.lab.bench.bench_models import subject, write_subject
from windlass.lab.bench.contenders import (
    OURS,
    ContenderLoad,
    EngineContender,
    OurEngine,
    Peer,
    our_engine,
    peer_process,
)
from windlass.lab.bench.engine_process import resident_bytes
from windlass.lab.bench.task import BenchTask, TaskSpeed, TimedAnswer, agreement, draw_task, pace_of
from windlass.plan.local.machine import usable_cores
from windlass.spec.errors import BadInput, WindlassError, did_you_mean
from windlass.spec.protocol.progress import Progress, Report

PRECISIONS = ("float32", "int8")
WARM_OUTPUT = 4
SEED = 6


@dataclass(frozen=True)
class ServeBenchOptions:
    """Models, precisions and sizes to measure."""

    models: tuple[str, ...] = ("small", "base")
    precisions: tuple[str, ...] = PRECISIONS
    concurrency: tuple[int, ...] = (1, 8, 32)
    prompt: int = 128
    output: int = 128
    requests: int = 4
    """Minimum of one task; never fewer than the concurrency."""

    def task(self, vocabulary: int, concurrency: int) -> BenchTask:
        return draw_task(
            (SEED, concurrency),
            vocabulary=vocabulary,
            prompt=self.prompt,
            output=self.output,
            concurrency=concurrency,
            requests=self.requests,
        )


@dataclass(frozen=True)
class ServeRow:
    """One contender in one cell."""

    contender: str
    setting: str
    pace: TaskSpeed
    peak_bytes: int
    ratio: float
    """Our tokens/s over this contender's."""
    same_first_token: float


@dataclass(frozen=True)
class ServeCell:
    """One model at one precision and concurrency."""

    model: str
    precision: str
    concurrency: int
    rows: list[ServeRow]
    """Ours first."""

    @property
    def name(self) -> str:
        return f"{self.model}_{self.precision}_{self.concurrency}"

    @property
    def ours(self) -> ServeRow:
        return self.rows[0]

    @property
    def best_peer(self) -> ServeRow | None:
        return min(self.rows[1:], key=lambda row: row.ratio, default=None)


def bench_serve(
    options: ServeBenchOptions,
    peers: Sequence[Peer],
    home: Path,
    report: Report,
    say: Callable[[str], None],
) -> list[ServeCell]:
    """Measure all cells; a peer that fails is reported and left out."""
    _check(options)
    cells: list[ServeCell] = []
    total = len(options.models) * len(options.precisions) * len(options.concurrency)
    for model in options.models:
        for precision in options.precisions:
            with ExitStack() as stack:
                report(Progress("cells", len(cells), total, "cells", {"loading": f"{model} {precision}"}))
                load = load_of(model, precision, options, home)
                ours = stack.enter_context(our_engine(load, home / "logs" / "bench-engine.log"))
                others = _enter(stack, peers, load, home, say)
                for concurrency in options.concurrency:
                    report(Progress("cells", len(cells), total, "cells", {"now": f"{model} {precision}"}))
                    task = options.task(subject(model).vocabulary, concurrency)
                    cells.append(ServeCell(model, precision, concurrency, measure(ours, others, task)))
    report(Progress("cells", total, total, "cells"))
    return cells


def load_of(model: str, precision: str, options: ServeBenchOptions, home: Path) -> ContenderLoad:
    shape = subject(model)
    scratch = home / "bench"
    slots = max(options.concurrency)
    folder = write_subject(shape, scratch / model)
    return ContenderLoad(folder, precision, usable_cores(), slots, shape.context, scratch)


def measure(ours: OurEngine, others: Sequence[EngineContender], task: BenchTask) -> list[ServeRow]:
    """Measure ours and the others in turn."""
    warm = BenchTask([prompt[: len(prompt) // 2] for prompt in task.prompts], WARM_OUTPUT, task.concurrency)
    for contender in (ours, *others):
        contender.answer(warm)
    mine, theirs = [ours.answer(task)], []
    for peer in others:
        theirs.append(peer.answer(task))
        mine.append(ours.answer(task))
    return _rows(ours, others, mine, theirs)


def _rows(
    ours: OurEngine,
    others: Sequence[EngineContender],
    mine: Sequence[Sequence[TimedAnswer]],
    theirs: Sequence[Sequence[TimedAnswer]],
) -> list[ServeRow]:
    paces = [pace_of(answers) for answers in mine]
    rows = [ServeRow(OURS, ours.setting, median_pace(paces), resident_bytes(ours.pid), 1.0, 1.0)]
    for number, (peer, answers) in enumerate(zip(others, theirs, strict=True)):
        pace = pace_of(answers)
        ours_per_s = (paces[number].tokens_per_s + paces[number + 1].tokens_per_s) / 2
        same = agreement(mine[number], answers)
        ratio = ours_per_s / pace.tokens_per_s
        rows.append(ServeRow(peer.name, peer.setting, pace, resident_bytes(peer.pid), ratio, same))
    return rows


def median_pace(paces: Sequence[TaskSpeed]) -> TaskSpeed:
    """Return the median of each number separately."""
    return TaskSpeed(
        *(statistics.median(values) for values in zip(*(asdict(p).values() for p in paces), strict=True))
    )


def figures(cells: Sequence[ServeCell]) -> dict[str, float]:
    """Return our ratio to the best peer in every cell that has one, and the gain from concurrency."""
    found = {cell.name: cell.best_peer.ratio for cell in cells if cell.best_peer is not None}
    by_name = {cell.name: cell.ours.pace.tokens_per_s for cell in cells}
    if {"small_float32_1", "small_float32_32"} <= by_name.keys():
        found["batch32_vs_1"] = by_name["small_float32_32"] / by_name["small_float32_1"]
    return found


def as_json(cells: Sequence[ServeCell]) -> list[dict[str, Any]]:
    return [{"cell": cell.name, **asdict(cell)} for cell in cells]


def _enter(
    stack: ExitStack, peers: Sequence[Peer], load: ContenderLoad, home: Path, say: Callable[[str], None]
) -> list[EngineContender]:
    """Start the peers that support the precision."""
    found: list[EngineContender] = []
    for peer in peers:
        if load.precision not in peer.precisions:
            continue
        log = home / "logs" / f"bench-{peer.name}.log"
        try:
            found.append(stack.enter_context(peer_process(peer, load, log)))
        except WindlassError as error:
            say(f"left out: {error}")
    return found


def _check(options: ServeBenchOptions) -> None:
    for precision in options.precisions:
        if precision not in PRECISIONS:
            raise BadInput(f"--precisions {precision}", hint=did_you_mean(precision, list(PRECISIONS)))
    for option, minimum in (("prompt", 2), ("output", 2), ("requests", 1)):
        if getattr(options, option) < minimum:
            raise BadInput(f"--{option} {getattr(options, option)}: must be at least {minimum}")
    for model in options.models:
        context = subject(model).context
        if options.prompt + options.output > context:
            raise BadInput(
                f"--prompt and --output make {options.prompt + options.output} tokens,"
                f" but the context of {model} is {context}"
            )
    if min(options.concurrency) < 1:
        raise BadInput(f"--concurrency {min(options.concurrency)}: must be at least 1")
