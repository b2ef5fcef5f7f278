"""The roll-out controller: drives the roll-outs of one service.

Every step it reads roll-outs and commands from the database, claims those of its service, steps each roll-out
and writes its state. A version that was promoted in the registry by other means (`windlass models promote`)
is rolled out as well, blue/green; if it is rolled back, so is the alias.
"""

from __future__ import annotations

import math
import secrets
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from windlass.registry.versions import PROD, Registry, Version
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.rollouts import RolloutRecord, Rollouts
from windlass.spec.errors import InUse, StoreFailed, WindlassError
from windlass.spec.rollout import Rollout
from windlass.store.database import Database
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.health.monitor import HealthWatch
from windlass.supervisor.rollout.ab_rounds import Rounds, side_of
from windlass.supervisor.rollout.report import report_of, write_report
from windlass.supervisor.rollout.rollout_state import RolloutState
from windlass.supervisor.state import NOTHING, Patch, ServiceState

LOOK_EVERY_S = 0.5
WRITE_EVERY_S = 1.0
FOLLOWER = Actor("", "supervisor")


class RolloutController:
    """The roll-outs under way, and the old versions that stay on standby for a while after them."""

    def __init__(self, home: Path, db: Database, policy: Rollout, health: HealthWatch) -> None:
        self._home, self._policy, self._health = home, policy, health
        self._registry, self._rollouts = Registry(home), Rollouts(db)
        self._name = f"supervisor-{secrets.token_hex(4)}"
        self._drives: dict[str, RolloutState] = {}
        self._commands: dict[str, str] = {}
        self._retiring: dict[str, float] = {}
        """Old versions, and when they are removed."""
        self._meant: dict[str, str] = {}
        """The version that @prod of a name last meant in the registry, if that is what is served."""
        self._aliases: dict[str, dict[str, int]] = {}
        """All aliases of these names, as they were then."""
        self._holds: dict[str, ExitStack] = {}
        self._looked = -math.inf
        self._wrote: dict[str, float] = {}

    def decide(self, view: ServiceState, now: float) -> Patch:
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            with suppress(StoreFailed):  # an unreachable database must not stop the service
                self._look(view.wanted, now)
        wanted = view.wanted
        for drive in list(self._drives.values()):
            wanted = self._drive(drive, view, wanted, now)
        wanted = self._retire(wanted, now)
        return NOTHING if wanted == view.wanted else Patch(wanted=wanted)

    def close(self) -> None:
        for drive in self._drives.values():
            if drive.rounds is not None:
                drive.rounds.stop()
        for hold in self._holds.values():
            hold.close()

    def _drive(
        self, drive: RolloutState, view: ServiceState, wanted: DesiredService, now: float
    ) -> DesiredService:
        before = drive.state, drive.weight
        self._ask_both(drive, view)
        wrong = self._health.take_wrong(drive.candidate.name)
        drive.step(view, now, command=self._commands.get(drive.record.id, ""), wrong=wrong)
        changed = (drive.state, drive.weight) != before
        wanted = drive.place(wanted)
        if changed or now - self._wrote.get(drive.record.id, -math.inf) >= WRITE_EVERY_S:
            self._wrote[drive.record.id] = now
            if self._write(drive) and drive.is_ended:
                self._finish(drive, now)
                wanted = self._renamed(wanted, drive.record.name)
        return wanted

    def _ask_both(self, drive: RolloutState, view: ServiceState) -> None:
        """Run comparison rounds if both versions have a ready replica."""
        old = next((each for each in view.of(drive.stable.version) if each.phase == "ready"), None)
        new = next((each for each in view.of(drive.candidate.name) if each.phase == "ready"), None)
        if old is None or new is None:
            return
        if drive.rounds is not None:
            drive.rounds.use_sockets(old.socket, new.socket)
        elif drive.wants_rounds:
            self._start_rounds(drive, old.socket, new.socket)

    def _start_rounds(self, drive: RolloutState, old: Path, new: Path) -> None:
        version = drive.stable.version
        try:
            stable = side_of(version, drive.stable.items[0].model, old)
            candidate = side_of(drive.candidate.name, drive.candidate.model, new)
        except WindlassError as error:
            drive.fault(f"its files cannot be read: {error.message}")
            return
        drive.rounds = Rounds(stable, candidate, drive.record.held_out, self._version(version))
        drive.rounds.start()

    def _look(self, wanted: DesiredService, now: float) -> None:
        """Read roll-outs and commands; claim roll-outs of names that are served here."""
        self._follow(wanted)
        records = self._rollouts.open()
        self._commands = {record.id: record.command for record in records}
        for record in records:
            stable = serving(wanted, record.name)
            if record.id not in self._drives and stable is not None:
                self._take(record, stable, now)

    def _take(self, record: RolloutRecord, stable: ReplicaGroup, now: float) -> None:
        if not self._rollouts.claim(record.id, self._name, stable.version):
            return
        reason = refusal(record, stable)
        try:
            version = self._registry.find(record.candidate)
        except WindlassError as error:
            reason = reason or error.message
        if reason:
            self._rollouts.change(record.id, "rolled_back", reason=reason, report={})
            return
        self._hold(version)
        item = Item(str(version), version.path, adapters=stable.items[0].adapters)
        self._health.take_wrong(str(version))  # clears wrong answers from before this roll-out
        self._drives[record.id] = RolloutState(record, stable, item, now)
        self._retiring.pop(record.candidate, None)

    def _finish(self, drive: RolloutState, now: float) -> None:
        del self._drives[drive.record.id]
        if drive.state == "promoted":
            self._registry.promote(drive.candidate.name)
            self._meant[drive.record.name] = drive.candidate.name
            self._retiring[drive.stable.version] = now + drive.record.policy.standby
        else:
            self._restore(drive)
            self._release(drive.candidate.name)

    def _renamed(self, wanted: DesiredService, name: str) -> DesiredService:
        """Give aliases, such as NAME@prod, to the versions that have them in the registry now.

        Only here: during a roll-out they stay with the old version.
        """
        aliases = self._registry.aliases(name)
        for group in wanted.groups:
            if group.items[0].bare == name:
                mine = tuple(a for a, number in aliases.items() if f"{name}@{number}" == group.version)
                items = (replace(group.items[0], aliases=mine), *group.items[1:])
                wanted = wanted.with_group(replace(group, items=items))
        return wanted

    def _restore(self, drive: RolloutState) -> None:
        """Restore the aliases, if one was moved to the version that is rolled back."""
        name = drive.record.name
        if self._promoted(name) == drive.candidate.name and name in self._aliases:
            self._registry.put_back(name, self._aliases[name])
            self._meant[name] = drive.stable.version

    def _retire(self, wanted: DesiredService, now: float) -> DesiredService:
        """Remove old versions whose standby time is over."""
        for version in [version for version, until in self._retiring.items() if now >= until]:
            del self._retiring[version]
            self._release(version)
            standby = tuple(each for each in wanted.standby if each != version)
            wanted = DesiredService(wanted.without(version).groups, standby)
        return wanted

    def _follow(self, wanted: DesiredService) -> None:
        """Roll out the version that @prod was moved to, if @prod meant the served version before."""
        for group in wanted.groups:
            name = group.items[0].bare
            if serving(wanted, name) != group:
                continue
            promoted = self._promoted(name)
            if promoted in ("", group.version):
                self._meant[name], self._aliases[name] = group.version, self._registry.aliases(name)
            elif self._meant.get(name) == group.version:
                del self._meant[name]
                self._start_following(promoted)

    def _start_following(self, version: str) -> None:
        try:
            self._rollouts.start(version, "blue_green", self._policy, FOLLOWER)
        except InUse:
            return  # another roll-out of this name must end first

    def _promoted(self, name: str) -> str:
        """Return the version that is @prod, or ""."""
        number = self._registry.aliases(name).get(PROD)
        return "" if number is None else f"{name}@{number}"

    def _version(self, reference: str) -> Version | None:
        try:
            return self._registry.find(reference)
        except WindlassError:
            return None  # a directory that was never registered

    def _hold(self, version: Version) -> None:
        stack = ExitStack()
        stack.enter_context(self._registry.holding(version))
        self._holds[str(version)] = stack

    def _release(self, version: str) -> None:
        hold = self._holds.pop(version, None)
        if hold is not None:
            hold.close()

    def _write(self, drive: RolloutState) -> bool:
        """Write the state of a roll-out; return whether that worked. The caller retries later if not."""
        report = report_of(drive)
        try:
            write_report(self._home, report)
            self._rollouts.change(
                drive.record.id, drive.state, weight=drive.weight, reason=str(report["reason"]), report=report
            )
        except StoreFailed:
            return False
        return True


def serving(wanted: DesiredService, name: str) -> ReplicaGroup | None:
    """Return the group with the largest share of the requests for a name."""
    groups = [group for group in wanted.groups if name in (item.bare for item in group.items)]
    return max(groups, key=lambda group: group.weight, default=None)


def refusal(record: RolloutRecord, stable: ReplicaGroup) -> str:
    """Return why a roll-out is not possible, or ""."""
    if record.candidate == stable.version:
        return f"{record.candidate} is already served"
    if len(stable.items) > 1:
        return f"{stable.version} shares its engines with other models; serve it by itself to roll out"
    return ""
