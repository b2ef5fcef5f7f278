"""Shows the progress of a run, in a terminal or in a notebook.

    jobs.follow("poems")                         # draws until the run ends, returns its final state

A notebook gets one picture that is redrawn, a terminal one line, a file a line now and then. IPython is
used if it is loaded already, and is not needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from windlass.sdk.runs import MetricCurve, curve_of
from windlass.sdk.tables import bar, facts_table, shown

EVERY_S = 0.25
FILE_EVERY_S = 30.0
CELLS = 24
SHOWN_EVENTS = (
    "evaluation",
    "paused",
    "unpaused",
    "resumed",
    "lost",
    "warning",
    "restarted",
    "stopped",
    "finished",
)


class RunProgress:
    """The progress according to the journal's records so far; pure."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.last: Mapping[str, Any] = {}
        self.validation_loss: float | None = None
        self.state = "starting"
        self._steps: list[Mapping[str, Any]] = []

    def push(self, record: Mapping[str, Any]) -> str | None:
        """Take a record; return a sentence about it if it is important."""
        event = str(record.get("event"))
        if event in ("step", "resumed"):
            self._steps.append(record)
        if event == "step":
            self.last, self.state = record, "running"
        if event == "evaluation":
            self.validation_loss = record.get("loss")
        if event in ("paused", "stopped", "finished"):
            self.state = event
        return _sentence(event, record) if event in SHOWN_EVENTS else None

    @property
    def share(self) -> float | None:
        steps = self.last.get("steps")
        return self.last["step"] / steps if steps else None

    @property
    def loss(self) -> MetricCurve:
        """The loss of training so far."""
        return curve_of(self._steps, "loss", "step")

    def __str__(self) -> str:
        share = self.share or 0.0
        full = round(CELLS * min(1.0, share))
        said = [
            f"{self.run} [{'#' * full}{'.' * (CELLS - full)}] {share:4.0%}",
            f"step {shown(self.last.get('step', 0))}/{shown(self.last.get('steps'))}",
            f"loss {shown(self.last.get('loss'))}",
            f"{shown(self.last.get('tokens_per_s'))} tok/s",
        ]
        left_s = self.last.get("seconds_left")
        if self.state == "running" and isinstance(left_s, int | float):
            said.append(f"{int(left_s) // 60}:{int(left_s) % 60:02d} left")
        elif self.state != "running":
            said.append(self.state)
        return "  ".join(said)

    def _repr_html_(self) -> str:
        rows = {
            "run": self.run,
            "state": self.state,
            "loss": self.last.get("loss"),
            "validation loss": self.validation_loss,
            "tokens/s": self.last.get("tokens_per_s"),
        }
        steps = f"step {shown(self.last.get('step', 0))} of {shown(self.last.get('steps'))}"
        return bar(self.share, steps) + facts_table(rows) + self.loss._repr_html_()


class Screen(Protocol):
    """An output to draw on."""

    every_s: float

    def draw(self, progress: RunProgress) -> None: ...

    def say(self, sentence: str) -> None: ...

    def close(self, progress: RunProgress) -> None: ...


class Terminal:
    """A terminal: one line that is overwritten, and permanent lines above it."""

    every_s = EVERY_S

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._width = 0

    def draw(self, progress: RunProgress) -> None:
        line = str(progress)
        self._out.write("\r" + line.ljust(self._width))
        self._out.flush()
        self._width = len(line)

    def say(self, sentence: str) -> None:
        self._out.write("\r" + sentence.ljust(self._width) + "\n")
        self._width = 0

    def close(self, progress: RunProgress) -> None:
        self.draw(progress)
        self._out.write("\n")
        self._out.flush()


class PlainOutput:
    """Lines in a file or a pipe."""

    every_s = FILE_EVERY_S

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def draw(self, progress: RunProgress) -> None:
        self.say(str(progress))

    def say(self, sentence: str) -> None:
        self._out.write(sentence + "\n")
        self._out.flush()

    def close(self, progress: RunProgress) -> None:
        self.draw(progress)


class Notebook:
    """A picture below the notebook cell, which is redrawn."""

    every_s = EVERY_S

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, progress: RunProgress) -> None:
        if self._handle is None:
            self._handle = self._display(progress, display_id=True)
        else:
            self._handle.update(progress)

    def say(self, sentence: str) -> None:
        """A picture has no lines; what a sentence says is in it, or in the journal."""

    def close(self, progress: RunProgress) -> None:
        self.draw(progress)


class Show:
    """Draws the records of a run as they arrive, at a limited rate."""

    def __init__(
        self, run: str, screen: Screen | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.progress = RunProgress(run)
        self._screen = screen or screen_here()
        self._clock = clock
        self._drawn = -float("inf")

    def push(self, record: Mapping[str, Any]) -> None:
        sentence = self.progress.push(record)
        if sentence is not None:
            self._screen.say(f"{self.progress.run}: {sentence}")
        now = self._clock()
        if now - self._drawn >= self._screen.every_s:
            self._drawn = now
            self._screen.draw(self.progress)

    def close(self) -> None:
        self._screen.close(self.progress)


def screen_here(out: TextIO | None = None) -> Screen:
    """Return the notebook that this runs in, else the terminal, else lines."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    if out is None and shell is not None and hasattr(shell, "kernel"):
        from importlib import import_module

        return Notebook(import_module("IPython.display").display)
    stream = out or sys.stderr
    return Terminal(stream) if stream.isatty() else PlainOutput(stream)


def _sentence(event: str, record: Mapping[str, Any]) -> str:
    where = f"step {record['step']}: " if "step" in record else ""
    if event == "evaluation":
        return f"{where}validation loss {shown(record.get('loss'))}"
    if event == "lost":
        return f"worker {record.get('worker')} was lost ({record.get('how')})"
    return where + str(record.get("message", event))
