"""The outcome of a launch: how ranks ended, and which rank failed first.

When one rank dies, its peers lose their connections to it and fail a moment later. So the launcher collects
exits for a moment before it blames one: a rank that failed by itself is the culprit, however late its exit
was seen.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from windlass.cluster.launch.local_process import cause_of, error_of
from windlass.spec.errors import ProcessFailed, WindlassError
from windlass.spec.protocol.entrypoint import INTERRUPTED

COLLECT_S = 0.3
"""From the first failure, for others that happened at the same time."""
LATE_S = 2.0
"""From the first failure, when only lost connections are known: another rank must have closed them."""
ALONE_S = 60.0
"""How long ranks may stay silent after others have succeeded."""
ALONE_AFTER_STOP_S = 10.0
"""The same when a rank was stopped before it could listen: its peers wait for it in vain."""

_LOST = re.compile(
    r"connection (was )?(closed|reset|refused|likely closed)|broken pipe|closed by peer"
    r"|remote (worker|server)"
    r"|did not meet the others|failed to (recv|send|connect)|(recvvalue|sendbytes|recvbytes) failed"
    r"|DistNetworkError|DistStoreError",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class RankExit:
    """How one rank ended."""

    rank: int
    code: int
    """Its exit code, negative for a signal."""
    at_s: float
    """When its exit or its error was seen; on the clock of the deciding launcher."""
    error: dict[str, Any] | None = None
    """The error that it reported."""
    tail: str = ""
    """The end of its log."""
    gone: str | None = None
    """Why its exit is unknown: its whole machine is gone."""

    @property
    def good(self) -> bool:
        return self.error is None and self.gone is None and self.code in (0, INTERRUPTED)

    @property
    def follows(self) -> bool:
        """Whether it only lost a peer."""
        if self.error is not None:
            return bool(_LOST.search(str(self.error.get("message"))))
        if self.gone is not None or (self.code < 0 and self.code != -signal.SIGABRT):
            return False
        return bool(_LOST.search(self.tail))


@dataclass(frozen=True)
class LaunchOutcome:
    """The state of a launch."""

    state: Literal["running", "done", "stopped", "failed"]
    culprit: RankExit | None = None


RUNNING = LaunchOutcome("running")


def decide(
    exits: Collection[RankExit], world: int, *, now_s: float, last_event_s: float, stop_requested: bool
) -> LaunchOutcome:
    """Return whether the ranks are running, done, stopped on request, or failed, and which rank failed.

    `last_event_s` is when any rank last sent an event; `stop_requested`: the ranks were told to stop.
    """
    bad = [e for e in exits if not e.good and not (stop_requested and _obeyed(e))]
    if bad:
        return _decide_bad(bad, all_over=len(exits) == world, now_s=now_s, stop_requested=stop_requested)
    if len(exits) == world:
        stopped = any(e.code != 0 for e in exits)
        return LaunchOutcome("stopped" if stopped else "done")
    if exits:
        return _decide_alone(exits, max(last_event_s, min(e.at_s for e in exits)), now_s, stop_requested)
    return RUNNING


def _decide_bad(bad: list[RankExit], *, all_over: bool, now_s: float, stop_requested: bool) -> LaunchOutcome:
    own = [e for e in bad if not e.follows]
    waited_s = now_s - min(e.at_s for e in bad)
    if not (all_over or waited_s >= LATE_S or (own and waited_s >= COLLECT_S)):
        return RUNNING
    if stop_requested and not own:  # they lost a peer that stopped on request
        return LaunchOutcome("stopped")
    return LaunchOutcome("failed", min(own or bad, key=lambda e: (e.at_s, e.rank)))


def _decide_alone(
    exits: Collection[RankExit], since_s: float, now_s: float, stop_requested: bool
) -> LaunchOutcome:
    """Limit how long ranks may run without those that have ended."""
    early = stop_requested and any(_obeyed(e) for e in exits)
    if now_s - since_s < (ALONE_AFTER_STOP_S if early else ALONE_S):
        return RUNNING
    if stop_requested:
        return LaunchOutcome("stopped")
    return LaunchOutcome("failed", min(exits, key=lambda e: (e.at_s, e.rank)))


def error_from(culprit: RankExit, exits: Collection[RankExit], world: int, log: str) -> WindlassError:
    """Return the error of a launch, from the rank that failed first."""
    who = f"rank {culprit.rank}" if world > 1 else "the training process"
    if culprit.error is not None:
        message = str(culprit.error.get("message"))
        same = sum(e.error is not None and e.error.get("message") == message for e in exits)
        named = world == 1 or same > 1 or message.startswith("rank ")
        return error_of({**culprit.error, "message": message if named else f"{who}: {message}"})
    if culprit.gone is not None:
        return ProcessFailed(f"{who}: {culprit.gone}")
    if culprit.good:
        return ProcessFailed(
            f"{who} {cause_of(culprit.code)} while the other ranks ran on, silent for {ALONE_S:.0f} s",
            hint=f"{log} has their output",
        )
    return ProcessFailed(f"{who} {cause_of(culprit.code)}", hint=culprit.tail)


def _obeyed(ending: RankExit) -> bool:
    """Whether a rank was ended by SIGTERM, before it could handle it."""
    return ending.error is None and ending.code == -signal.SIGTERM
