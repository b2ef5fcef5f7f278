"""How ranks ended, and whose end explains the others'.

When one rank dies, its peers lose their connections to it and die of that a moment later. So the launcher
collects for a moment before it blames: a rank that died of its own is the culprit, however late it was seen.
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
"""From the first bad end, for others that happened at the same time."""
LATE_S = 2.0
"""From the first bad end, when all that is known are lost connections: somebody must have closed them."""
ALONE_S = 60.0
"""Without a word, after others have ended well."""
ALONE_ASKED_S = 10.0
"""The same when one was asked to stop before it could listen, and is gone: nobody will meet it."""

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
    """When it was seen, or when it told its error; on the clock of who decides."""
    told: dict[str, Any] | None = None
    """The error that it told."""
    tail: str = ""
    """The end of its log."""
    gone: str | None = None
    """Why nothing is known of it: its whole machine went away."""

    @property
    def good(self) -> bool:
        return self.told is None and self.gone is None and self.code in (0, INTERRUPTED)

    @property
    def follows(self) -> bool:
        """Whether it only lost a peer."""
        if self.told is not None:
            return bool(_LOST.search(str(self.told.get("message"))))
        if self.gone is not None or (self.code < 0 and self.code != -signal.SIGABRT):
            return False
        return bool(_LOST.search(self.tail))


@dataclass(frozen=True)
class LaunchOutcome:
    """Where a launch stands."""

    state: Literal["running", "done", "stopped", "failed"]
    culprit: RankExit | None = None


RUNNING = LaunchOutcome("running")


def decide(
    endings: Collection[RankExit], world: int, *, now_s: float, heard_at_s: float, asked: bool
) -> LaunchOutcome:
    """Say whether the ranks go on, are done, stopped as they were asked, or failed, and by whom.

    `heard_at_s` is when any rank last told something; `asked` says that they were asked to stop.
    """
    bad = [e for e in endings if not e.good and not (asked and _obeyed(e))]
    if bad:
        return _decide_bad(bad, all_over=len(endings) == world, now_s=now_s, asked=asked)
    if len(endings) == world:
        stopped = any(e.code != 0 for e in endings)
        return LaunchOutcome("stopped" if stopped else "done")
    if endings:
        return _decide_alone(endings, max(heard_at_s, min(e.at_s for e in endings)), now_s, asked)
    return RUNNING


def _decide_bad(bad: list[RankExit], *, all_over: bool, now_s: float, asked: bool) -> LaunchOutcome:
    own = [e for e in bad if not e.follows]
    waited_s = now_s - min(e.at_s for e in bad)
    if not (all_over or waited_s >= LATE_S or (own and waited_s >= COLLECT_S)):
        return RUNNING
    if asked and not own:  # they lost one who did as it was asked
        return LaunchOutcome("stopped")
    return LaunchOutcome("failed", min(own or bad, key=lambda e: (e.at_s, e.rank)))


def _decide_alone(endings: Collection[RankExit], since_s: float, now_s: float, asked: bool) -> LaunchOutcome:
    """Bound how long ranks may go on without those who ended."""
    early = asked and any(_obeyed(e) for e in endings)
    if now_s - since_s < (ALONE_ASKED_S if early else ALONE_S):
        return RUNNING
    if asked:
        return LaunchOutcome("stopped")
    return LaunchOutcome("failed", min(endings, key=lambda e: (e.at_s, e.rank)))


def error_from(culprit: RankExit, endings: Collection[RankExit], world: int, log: str) -> WindlassError:
    """Say what happened, by the rank that it happened to."""
    who = f"rank {culprit.rank}" if world > 1 else "the training process"
    if culprit.told is not None:
        message = str(culprit.told.get("message"))
        same = sum(e.told is not None and e.told.get("message") == message for e in endings)
        named = world == 1 or same > 1 or message.startswith("rank ")
        return error_of({**culprit.told, "message": message if named else f"{who}: {message}"})
    if culprit.gone is not None:
        return ProcessFailed(f"{who}: {culprit.gone}")
    if culprit.good:
        return ProcessFailed(
            f"{who} {cause_of(culprit.code)} while others went on, silent for {ALONE_S:.0f} s",
            hint=f"{log} has what they said",
        )
    return ProcessFailed(f"{who} {cause_of(culprit.code)}", hint=culprit.tail)


def _obeyed(ending: RankExit) -> bool:
    """Whether a rank ended by our asking, before it could listen."""
    return ending.told is None and ending.code == -signal.SIGTERM
