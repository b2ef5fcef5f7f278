"""Takes a roll-out over sites a step further, one effect at a time.

What is about to be done is saved first, and whether it was done is looked for before it is done: a process
that is killed anywhere leaves a record from which another goes on to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from windlass.sites.rollout.rollout_record import UNTOUCHED, SitesRolloutRecord, SiteState
from windlass.sites.rollout.site_client import SiteClient, SiteRollout
from windlass.sites.rollout.turns import active, ended, failed
from windlass.spec.errors import AskedWrongly, InUse, WindlassError
from windlass.spec.rollout import Rollout
from windlass.spec.sites import SitesRollout

TAKEN_BACK = ("rolled_back", "aborted")
UNDO = Rollout(gate=False, requests=0, seconds=0.1, stages=(1.0,))
"""Going back waits for no evidence: the old version has answered here before."""
CHANGING = ("draining", "asking", "rolling", "undoing")
Save = Callable[[SitesRolloutRecord], None]


class SitesRolloutDriver:
    """One roll-out under way, in the process that drives it."""

    def __init__(
        self,
        record: SitesRolloutRecord,
        doors: Mapping[str, SiteClient],
        plan: SitesRollout,
        fall: int,
        save: Save,
    ) -> None:
        self.record, self._doors, self._plan, self._fall, self._save = record, doors, plan, fall, save

    def step(self, now: float) -> bool:
        """Let every site whose turn it is take a step; say whether all is over."""
        for site in active(self.record, self._plan.at_once):
            if self.record.state == "under way":
                self._step(site, now)
        self._keep(ended(self.record, self._plan.at_once), now)
        return self.record.state != "under way"

    def _step(self, site: str, now: float) -> None:
        turn, door = self.record.sites[site], self._doors[site]
        try:
            new = self._next(site, turn, door, now)
        except InUse as error:
            new = replace(turn, why=error.message)
            self._bounded(site, turn.since_s, error.message, now)
        except AskedWrongly:
            raise
        except WindlassError as error:
            quiet = now if turn.quiet_s is None else turn.quiet_s
            new = replace(turn, quiet_s=quiet, good_s=None, why=error.message)
            self._bounded(site, quiet, error.message, now)
        else:
            new = replace(new, quiet_s=None)
        record = self.record.with_turn(site, new)
        if new.phase == "failed" or (new.phase == "undoing" and turn.phase != "undoing"):
            for other in active(self.record, self._plan.at_once):
                if other != site and self.record.sites[other].phase in UNTOUCHED:
                    self._undrain(self._doors[other])
            record = failed(record, site, new.why, now)  # saved together: nobody may go on in between
        self._keep(record, now)

    def _next(self, site: str, turn: SiteState, door: SiteClient, now: float) -> SiteState:
        match turn.phase:
            case "waiting":
                return self._waiting(site, turn, door, now)
            case "ready":
                return self._ready(site, turn, door, now)
            case "draining":
                if door.is_withdrawn():
                    return turn.to("asking", now)
                self._bounded(site, turn.since_s, "it is still sent clients", now)
                return turn
            case "asking":
                return turn.to("rolling", now, before=tuple(seen.id for seen in door.rollouts()))
            case "rolling":
                return self._rolling(turn, door, now)
            case "settling":
                return self._settling(turn, door, now)
            case "undoing":
                return self._undoing(site, turn, door, now)
            case over:
                raise ValueError(f"a site that is {over} takes no step")

    def _waiting(self, site: str, turn: SiteState, door: SiteClient, now: float) -> SiteState:
        if door.has_copy():
            return turn.to("ready", now, why="")
        self._bounded(site, turn.since_s, f"it has no copy of {self.record.model}", now)
        return replace(turn, why=f"waits for its copy of {self.record.model}")

    def _ready(self, site: str, turn: SiteState, door: SiteClient, now: float) -> SiteState:
        """Begin, unless this is the last site that is well."""
        if not self._another_is_well(site):
            self._bounded(site, turn.since_s, "no other site is well", now)
            return replace(turn, why="waits until another site is well")
        stable = door.serving()
        if stable == self.record.model:
            return turn.to("settling", now, stable=stable, why="")
        if self._plan.drain:
            door.drain(on=True)
            return turn.to("draining", now, stable=stable, why="")
        return turn.to("asking", now, stable=stable, why="")

    def _rolling(self, turn: SiteState, door: SiteClient, now: float) -> SiteState:
        """Have the site roll the version out by itself, and wait for its verdict."""
        mine = _first(door.rollouts(), self.record.model, turn.before)
        if self.record.failing:
            return self._turned_round(turn, door, mine, now)
        if mine is None:
            door.start(self.record.model, self._plan.kind, self._plan.policy)
            return turn
        if mine.state == "promoted":
            return turn.to("settling", now, why="")
        if mine.state in TAKEN_BACK:
            self._undrain(door)
            return turn.to("failed", now, why=mine.reason or mine.state)
        return replace(turn, why=f"{mine.state} at {mine.weight:.0%}" if mine.weight else mine.state)

    def _turned_round(
        self, turn: SiteState, door: SiteClient, mine: SiteRollout | None, now: float
    ) -> SiteState:
        """Another site failed meanwhile: what was begun here ends."""
        if mine is not None and mine.state == "promoted":
            return turn.to("undoing", now)
        if mine is None or mine.state in TAKEN_BACK:
            self._undrain(door)
            return turn.to("undone", now, why="another site failed")
        door.wish(mine.id, "abort")
        return turn

    def _settling(self, turn: SiteState, door: SiteClient, now: float) -> SiteState:
        """Known answers must be right, by this version, for a while."""
        probe = door.ask()
        serving = door.serving()
        if serving != self.record.model:
            return turn.to("undoing", now, why=f"serves {serving} instead")
        if not probe.good:
            if turn.bad + 1 < self._fall:
                return replace(turn, bad=turn.bad + 1, good_s=None, why=probe.why)
            return turn.to("undoing", now, why=probe.why)
        since = now if turn.good_s is None else turn.good_s
        if now - since < self._plan.settle:
            return replace(turn, good_s=since, bad=0, why="")
        self._undrain(door)
        return turn.to("done", now, why="")

    def _undoing(self, site: str, turn: SiteState, door: SiteClient, now: float) -> SiteState:
        """Make the site serve what it served before."""
        if turn.stable in ("", self.record.model):
            self._undrain(door)
            return turn.to("failed", now, why=f"{turn.why}; it has served nothing else before")
        if door.serving() == turn.stable:
            self._undrain(door)
            return turn.to("undone", now)
        seen = door.rollouts()
        if turn.before_undoing is None:
            return replace(turn, before_undoing=tuple(each.id for each in seen))
        mine = _first(seen, turn.stable, turn.before_undoing)
        if mine is None:
            door.start(turn.stable, "blue_green", UNDO)
        elif mine.state in TAKEN_BACK:
            self._bounded(site, turn.since_s, f"it cannot be taken back: {mine.reason}", now)
            return replace(turn, before_undoing=None)  # once more
        elif mine.state not in ("waiting", "loading", "promoted"):
            door.wish(mine.id, "promote")
        return turn

    def _another_is_well(self, site: str) -> bool:
        """Ask those that do not change now; whoever does not answer is not well."""
        busy = {
            s for s, turn in self.record.sites.items() if turn.phase in ("draining", "rolling", "undoing")
        }
        for other, door in self._doors.items():
            if other != site and other not in busy:
                try:
                    if door.ask().good:
                        return True
                except AskedWrongly:
                    raise
                except WindlassError:
                    continue
        return False

    def _undrain(self, door: SiteClient) -> None:
        if self._plan.drain:
            door.drain(on=False)

    def _bounded(self, site: str, since: float, why: str, now: float) -> None:
        """Stop when a wait has taken too long: nobody goes on without knowing how a site is."""
        if now - since >= self._plan.wait:
            turn = self.record.sites[site]
            if turn.phase in UNTOUCHED:
                self._undrain(self._doors[site])
            reason = f"{site}: {why}, for {now - since:.0f} s"
            self.record = replace(self.record, state="stopped", reason=reason)

    def _keep(self, record: SitesRolloutRecord, now: float) -> None:
        if record != self.record or record.state != "under way":
            self.record = replace(record, changed_s=now)
            self._save(self.record)


def _first(seen: list[SiteRollout], candidate: str, before: tuple[str, ...]) -> SiteRollout | None:
    """Return the roll-out that was asked for from here: one of the version that was not there before."""
    return next((each for each in seen if each.candidate == candidate and each.id not in before), None)
