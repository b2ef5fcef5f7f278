"""Whoever computes: asks for a task, pulls, learns, pushes, and asks again.

It keeps nothing that would be missed. A line that breaks, for whatever reason, ends what it was doing; it
goes to meet the servers again, and what it had not finished is handed out anew.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from windlass.spec.errors import ProcessFailed
from windlass.train.server.connections import Facts, Lines
from windlass.train.server.peers import LOOK_AGAIN_S, PATIENCE_S, Elsewhere


class Hand(Protocol):
    """What a worker knows of one stage of a run."""

    stage: str

    def do(self, order: Facts, lines: Lines) -> Facts:
        """Do a task; return what came of it, with the `version` of the values that it was computed from."""


def serve(
    folder: Path, servers: int, hand: Hand, name: str, stopped: Callable[[], bool], stage: Callable[[], str]
) -> None:
    """Work at one stage of a run until it is over, or until this worker shall leave.

    `stage` says which one the run is at, for a worker that finds the servers at another.
    """
    until = math.inf  # the first server may have much to do before it lets anybody in
    while not stopped():
        try:
            with contextlib.closing(Lines(folder, hand.stage, servers, name)) as lines:
                until = time.monotonic() + PATIENCE_S
                if _serve(lines, hand, stopped):
                    return
        except (ConnectionError, OSError) as error:
            if isinstance(error, Elsewhere) and stage() != hand.stage:
                return
            if time.monotonic() > until:
                raise ProcessFailed(
                    f"{name}: no server came back within {PATIENCE_S:.0f} s: {error}"
                ) from None
            time.sleep(LOOK_AGAIN_S)


def _serve(lines: Lines, hand: Hand, stopped: Callable[[], bool]) -> bool:
    """Do one task after the other. Return True when the stage is over."""
    told: Facts | None = None
    while not stopped() or told is not None:
        order = lines.chief.ask(told=told).head
        if order["kind"] == "end":
            return True
        begin = time.perf_counter()
        told = {"task": order["id"], **hand.do(order, lines), **lines.traffic()}
        told["took_s"] = time.perf_counter() - begin
    return False
