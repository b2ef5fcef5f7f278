"""Decides whether a member that has ended is restarted."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.cluster.backend import Restart, State
from windlass.cluster.launch.local_process import cause_of
from windlass.spec.errors import AskedWrongly
from windlass.spec.protocol.backoff import Backoff


@dataclass(frozen=True)
class Next:
    """The next state of a member, the delay until its next start, and the reason."""

    state: State
    wait_s: float = 0.0
    reason: str = ""


def decide(restart: Restart, *, code: int | None, restarts: int, ran_s: float, cause: str = "") -> Next:
    """Return what to do with a member that was restarted `restarts` times before.

    A member with invalid input stays failed: it would fail again. `cause` is what the supervisor knows beyond
    the exit code, e.g. that the member ran out of memory.
    """
    cause = cause or ("ended with an unknown exit code" if code is None else cause_of(code))
    if code == 0 and restart.policy != "always":
        return Next("done", reason="finished")
    if restart.policy == "never" or code == AskedWrongly.exit_code:
        return Next("failed", reason=cause)
    if code != 0 and restarts >= restart.max_restarts:
        return Next("failed", reason=f"{cause}, for the {_th(restarts + 1)} time")
    backoff = Backoff(restart.back_off_s, restart.max_back_off_s)
    wait_s = backoff.wait_s(1 if ran_s >= restart.max_back_off_s else restarts + 1)
    return Next("pending", wait_s, f"{cause}; it is restarted")


def _th(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"
