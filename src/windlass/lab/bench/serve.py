"""`windlass bench serve`: our engine and every installed peer at the same tasks, in one run.

    for each model and precision: load all contenders
        for each concurrency: ours, a peer, ours, another peer, ... ours

Only one computes at a time. The machine is shared and its speed moves within minutes, so a peer is held
against the mean of our runs right before and right after it. The best peer is the one that leaves us the
lowest ratio, and that ratio is the figure.
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
    """What to measure."""

    models: tuple[str, ...] = ("small", "base")
    precisions: tuple[str, ...] = PRECISIONS
    concurrency: tuple[int, ...] = (1, 8, 32)
    prompt: int = 128
    output: int = 128
    requests: int = 4
    """Of one task, at the least; there are never fewer than are in flight."""

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
    asked: ServeBenchOptions,
    peers: Sequence[Peer],
    home: Path,
    report: Report,
    say: Callable[[str], None],
) -> list[ServeCell]:
    """Measure all cells; a peer that fails is told of and left out."""
    _check(asked)
    cells: list[ServeCell] = []
    total = len(asked.models) * len(asked.precisions) * len(asked.concurrency)
    for model in asked.models:
        for precision in asked.precisions:
            with ExitStack() as stack:
                report(Progress("cells", len(cells), total, "cells", {"loading": f"{model} {precision}"}))
                load = load_of(model, precision, asked, home)
                ours = stack.enter_context(our_engine(load, home / "logs" / "bench-engine.log"))
                others = _enter(stack, peers, load, home, say)
                for concurrency in asked.concurrency:
                    report(Progress("cells", len(cells), total, "cells", {"now": f"{model} {precision}"}))
                    task = asked.task(subject(model).vocabulary, concurrency)
                    cells.append(ServeCell(model, precision, concurrency, measure(ours, others, task)))
    report(Progress("cells", total, total, "cells"))
    return cells


def load_of(model: str, precision: str, asked: ServeBenchOptions, home: Path) -> ContenderLoad:
    shape = subject(model)
    scratch = home / "bench"
    slots = max(asked.concurrency)
    folder = write_subject(shape, scratch / model)
    return ContenderLoad(folder, precision, usable_cores(), slots, shape.context, scratch)


def measure(ours: OurEngine, others: Sequence[EngineContender], task: BenchTask) -> list[ServeRow]:
    """Let ours and the others take turns."""
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
        beside = (paces[number].tokens_per_s + paces[number + 1].tokens_per_s) / 2
        same = agreement(mine[number], answers)
        ratio = beside / pace.tokens_per_s
        rows.append(ServeRow(peer.name, peer.setting, pace, resident_bytes(peer.pid), ratio, same))
    return rows


def median_pace(paces: Sequence[TaskSpeed]) -> TaskSpeed:
    """Take the median of each number by itself."""
    return TaskSpeed(
        *(statistics.median(values) for values in zip(*(asdict(p).values() for p in paces), strict=True))
    )


def figures(cells: Sequence[ServeCell]) -> dict[str, float]:
    """Return our ratio to the best peer in every cell that has one, and what more requests at once give."""
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
    """Start the peers that know the precision."""
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


def _check(asked: ServeBenchOptions) -> None:
    for precision in asked.precisions:
        if precision not in PRECISIONS:
            raise BadInput(f"--precisions {precision}", hint=did_you_mean(precision, list(PRECISIONS)))
    for option, least in (("prompt", 2), ("output", 2), ("requests", 1)):
        if getattr(asked, option) < least:
            raise BadInput(f"--{option} {getattr(asked, option)}: must be at least {least}")
    for model in asked.models:
        context = subject(model).context
        if asked.prompt + asked.output > context:
            raise BadInput(
                f"--prompt and --output make {asked.prompt + asked.output} tokens: {model} holds {context}"
            )
    if min(asked.concurrency) < 1:
        raise BadInput(f"--concurrency {min(asked.concurrency)}: must be at least 1")
