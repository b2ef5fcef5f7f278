"""Decides what becomes of a member that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.cluster.backend import Restart, State
from windlass.cluster.launch.local_process import cause_of
from windlass.spec.errors import AskedWrongly


@dataclass(frozen=True)
class Next:
    """The state after an end, the pause until the next start, and why."""

    state: State
    wait_s: float = 0.0
    reason: str = ""


def decide(restart: Restart, *, code: int | None, restarts: int, ran_s: float, cause: str = "") -> Next:
    """Return what to do with a member that was started again `restarts` times before.

    Who was asked wrongly would be again, so it stays failed. `cause` is what the keeper knows better than
    the exit code says, e.g. that the member ran out of memory.
    """
    cause = cause or ("ended, and nobody saw how" if code is None else cause_of(code))
    if code == 0 and restart.policy != "always":
        return Next("done", reason="ended well")
    if restart.policy == "never" or code == AskedWrongly.exit_code:
        return Next("failed", reason=cause)
    if code != 0 and restarts >= restart.most:
        return Next("failed", reason=f"{cause}, for the {_th(restarts + 1)} time")
    wait_s = pause_s(restart, 0 if ran_s >= restart.max_back_off_s else restarts)
    return Next("pending", wait_s, f"{cause}; it is started again")


def pause_s(restart: Restart, streak: int) -> float:
    """Return the pause after `streak` starts in a row that did not last."""
    return float(min(restart.max_back_off_s, restart.back_off_s * 2 ** min(streak, 32)))


def _th(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
