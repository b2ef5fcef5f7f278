"""Drives a rollout over sites step by step, one side effect at a time.

The driver saves the record before each effect, and checks whether the effect has happened before it repeats
it: after a kill at any point another process resumes from the record with the same result.
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
"""A roll-back needs no evidence: the site has served the old version before."""
CHANGING = ("draining", "asking", "rolling", "undoing")
Save = Callable[[SitesRolloutRecord], None]


class SitesRolloutDriver:
    """An active rollout, in the process that drives it."""

    def __init__(
        self,
        record: SitesRolloutRecord,
        clients: Mapping[str, SiteClient],
        plan: SitesRollout,
        fall: int,
        save: Save,
    ) -> None:
        self.record, self._clients, self._plan, self._fall, self._save = record, clients, plan, fall, save

    def step(self, now: float) -> bool:
        """Take a step for every active site; return whether the rollout is over."""
        for site in active(self.record, self._plan.at_once):
            if self.record.state == "under way":
                self._step(site, now)
        self._keep(ended(self.record, self._plan.at_once), now)
        return self.record.state != "under way"

    def _step(self, site: str, now: float) -> None:
        turn, client = self.record.sites[site], self._clients[site]
        try:
            new = self._next(site, turn, client, now)
        except InUse as error:
            new = replace(turn, why=error.message)
            self._stop_if_overdue(site, turn.since_s, error.message, now)
        except AskedWrongly:
            raise
        except WindlassError as error:
            quiet = now if turn.quiet_s is None else turn.quiet_s
            new = replace(turn, quiet_s=quiet, good_s=None, why=error.message)
            self._stop_if_overdue(site, quiet, error.message, now)
        else:
            new = replace(new, quiet_s=None)
        record = self.record.with_turn(site, new)
        if new.phase == "failed" or (new.phase == "undoing" and turn.phase != "undoing"):
            for other in active(self.record, self._plan.at_once):
                if other != site and self.record.sites[other].phase in UNTOUCHED:
                    self._undrain(self._clients[other])
            record = failed(
                record, site, new.why, now
            )  # saved together: no other site may proceed in between
        self._keep(record, now)

    def _next(self, site: str, turn: SiteState, client: SiteClient, now: float) -> SiteState:
        match turn.phase:
            case "waiting":
                return self._waiting(site, turn, client, now)
            case "ready":
                return self._ready(site, turn, client, now)
            case "draining":
                if client.is_withdrawn():
                    return turn.to("asking", now)
                self._stop_if_overdue(site, turn.since_s, "clients are still sent to it", now)
                return turn
            case "asking":
                return turn.to("rolling", now, before=tuple(seen.id for seen in client.rollouts()))
            case "rolling":
                return self._rolling(turn, client, now)
            case "settling":
                return self._settling(turn, client, now)
            case "undoing":
                return self._undoing(site, turn, client, now)
            case over:
                raise ValueError(f"a site that is {over} takes no step")

    def _waiting(self, site: str, turn: SiteState, client: SiteClient, now: float) -> SiteState:
        if client.has_copy():
            return turn.to("ready", now, why="")
        self._stop_if_overdue(site, turn.since_s, f"it has no copy of {self.record.model}", now)
        return replace(turn, why=f"waits for its copy of {self.record.model}")

    def _ready(self, site: str, turn: SiteState, client: SiteClient, now: float) -> SiteState:
        """Start, unless no other site is healthy."""
        if not self._another_is_healthy(site):
            self._stop_if_overdue(site, turn.since_s, "no other site is healthy", now)
            return replace(turn, why="waits until another site is healthy")
        stable = client.serving()
        if stable == self.record.model:
            return turn.to("settling", now, stable=stable, why="")
        if self._plan.drain:
            client.drain(on=True)
            return turn.to("draining", now, stable=stable, why="")
        return turn.to("asking", now, stable=stable, why="")

    def _rolling(self, turn: SiteState, client: SiteClient, now: float) -> SiteState:
        """Start the site's own rollout of the version, and wait for its result."""
        mine = _first(client.rollouts(), self.record.model, turn.before)
        if self.record.failing:
            return self._cancel(turn, client, mine, now)
        if mine is None:
            client.start(self.record.model, self._plan.kind, self._plan.policy)
            return turn
        if mine.state == "promoted":
            return turn.to("settling", now, why="")
        if mine.state in TAKEN_BACK:
            self._undrain(client)
            return turn.to("failed", now, why=mine.reason or mine.state)
        return replace(turn, why=f"{mine.state} at {mine.weight:.0%}" if mine.weight else mine.state)

    def _cancel(self, turn: SiteState, client: SiteClient, mine: SiteRollout | None, now: float) -> SiteState:
        """Cancel the site's rollout, because another site failed."""
        if mine is not None and mine.state == "promoted":
            return turn.to("undoing", now)
        if mine is None or mine.state in TAKEN_BACK:
            self._undrain(client)
            return turn.to("undone", now, why="another site failed")
        client.command(mine.id, "abort")
        return turn

    def _settling(self, turn: SiteState, client: SiteClient, now: float) -> SiteState:
        """Probe the site: it must serve this version and answer correctly for the settle time."""
        probe = client.ask()
        serving = client.serving()
        if serving != self.record.model:
            return turn.to("undoing", now, why=f"serves {serving} instead")
        if not probe.good:
            if turn.bad + 1 < self._fall:
                return replace(turn, bad=turn.bad + 1, good_s=None, why=probe.why)
            return turn.to("undoing", now, why=probe.why)
        since = now if turn.good_s is None else turn.good_s
        if now - since < self._plan.settle:
            return replace(turn, good_s=since, bad=0, why="")
        self._undrain(client)
        return turn.to("done", now, why="")

    def _undoing(self, site: str, turn: SiteState, client: SiteClient, now: float) -> SiteState:
        """Roll the site back to the version that it served before."""
        if turn.stable in ("", self.record.model):
            self._undrain(client)
            return turn.to("failed", now, why=f"{turn.why}; it has no earlier version to roll back to")
        if client.serving() == turn.stable:
            self._undrain(client)
            return turn.to("undone", now)
        seen = client.rollouts()
        if turn.before_undoing is None:
            return replace(turn, before_undoing=tuple(each.id for each in seen))
        mine = _first(seen, turn.stable, turn.before_undoing)
        if mine is None:
            client.start(turn.stable, "blue_green", UNDO)
        elif mine.state in TAKEN_BACK:
            self._stop_if_overdue(site, turn.since_s, f"it cannot be rolled back: {mine.reason}", now)
            return replace(turn, before_undoing=None)  # once more
        elif mine.state not in ("waiting", "loading", "promoted"):
            client.command(mine.id, "promote")
        return turn

    def _another_is_healthy(self, site: str) -> bool:
        """Probe the sites that do not change now; a site that does not answer is not healthy."""
        busy = {
            s for s, turn in self.record.sites.items() if turn.phase in ("draining", "rolling", "undoing")
        }
        for other, client in self._clients.items():
            if other != site and other not in busy:
                try:
                    if client.ask().good:
                        return True
                except AskedWrongly:
                    raise
                except WindlassError:
                    continue
        return False

    def _undrain(self, client: SiteClient) -> None:
        if self._plan.drain:
            client.drain(on=False)

    def _stop_if_overdue(self, site: str, since: float, why: str, now: float) -> None:
        """Stop the rollout when a wait takes too long: a site in an unknown state must not be ignored."""
        if now - since >= self._plan.wait:
            turn = self.record.sites[site]
            if turn.phase in UNTOUCHED:
                self._undrain(self._clients[site])
            reason = f"{site}: {why}, for {now - since:.0f} s"
            self.record = replace(self.record, state="stopped", reason=reason)

    def _keep(self, record: SitesRolloutRecord, now: float) -> None:
        if record != self.record or record.state != "under way":
            self.record = replace(record, changed_s=now)
            self._save(self.record)


def _first(seen: list[SiteRollout], candidate: str, before: tuple[str, ...]) -> SiteRollout | None:
    """Return the site rollout that this driver started: one of the version that is not in `before`."""
    return next((each for each in seen if each.candidate == candidate and each.id not in before), None)
