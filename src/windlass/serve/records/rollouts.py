"""Roll-outs in the database: their request, state and end.

The CLI and the admin API write roll-outs and commands; the supervisor that serves the name claims a roll-out,
drives it and writes its state. An ended roll-out never changes again. docs/formats/service-state.md has the
tables.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from windlass.serve.records.audit_log import HEAD, Act, Actor, append
from windlass.spec.errors import AskedWrongly, InUse, NotFound
from windlass.spec.rollout import Rollout
from windlass.store.database import Database, Row, Schema, Transaction

Kind = Literal["canary", "blue_green", "weights", "shadow"]
State = Literal["waiting", "loading", "gate", "shadow", "canary", "promoted", "rolled_back", "aborted"]
Command = Literal["", "abort", "promote"]

ABANDONED_S = 30.0
"""The driving supervisor writes every second; a roll-out not written for this long has lost it."""
ENDED: tuple[State, ...] = ("promoted", "rolled_back", "aborted")

ROLLOUTS = Schema(
    "rollouts",
    (
        "CREATE TABLE rollouts (id TEXT PRIMARY KEY, name TEXT NOT NULL, stable TEXT NOT NULL,"
        " candidate TEXT NOT NULL, kind TEXT NOT NULL, policy TEXT NOT NULL, held_out TEXT NOT NULL,"
        " who TEXT NOT NULL, state TEXT NOT NULL, weight DOUBLE PRECISION NOT NULL, command TEXT NOT NULL,"
        " driver TEXT NOT NULL, reason TEXT NOT NULL, report TEXT NOT NULL,"
        " made DOUBLE PRECISION NOT NULL, changed DOUBLE PRECISION NOT NULL)",
    ),
)
_SELECT = (
    "SELECT id, name, stable, candidate, kind, policy, held_out, who, state, weight, command, driver, reason,"
    " report, made, changed FROM rollouts"
)


@dataclass(frozen=True)
class RolloutRecord:
    """One roll-out of a version under a name."""

    id: str
    name: str
    stable: str
    """The version that served the name before; empty until a supervisor drives the roll-out."""
    candidate: str
    kind: Kind
    policy: Rollout
    held_out: str
    """A file with text that neither version was trained on, or empty."""
    who: str
    state: State = "waiting"
    weight: float = 0.0
    command: Command = ""
    driver: str = ""
    """The supervisor that drives it."""
    reason: str = ""
    report: dict[str, Any] = field(default_factory=dict)
    made: float = 0.0
    changed: float = 0.0

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED


class Rollouts:
    """The roll-outs of all services that share a database."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def start(
        self, candidate: str, kind: Kind, policy: Rollout, by: Actor, *, held_out: str = ""
    ) -> RolloutRecord:
        """Request a roll-out; one at a time for each name."""
        now, name = self._clock(), candidate.partition("@")[0]
        record = RolloutRecord(
            f"ro-{secrets.token_hex(4)}", name, "", candidate, kind, policy, held_out, by.name,
            made=now, changed=now,
        )  # fmt: skip

        def work(transaction: Transaction) -> None:
            for row in transaction.execute(f"{_SELECT} WHERE name = ?", name):
                _refuse_beside(_record(row))
            transaction.execute(f"INSERT INTO rollouts VALUES ({', '.join('?' * 16)})", *_values(record))
            append(transaction, by, Act("rollout.start", candidate, note=record.id), now_s=now)

        self._database.atomically(work, alone=HEAD)
        return record

    def find(self, reference: str) -> RolloutRecord:
        """Return a roll-out by its id, or the newest of a model by its name."""
        query = f"{_SELECT} WHERE id = ? OR name = ? ORDER BY made DESC LIMIT 1"
        rows = self._database.read(query, reference, reference.partition("@")[0])
        if not rows:
            raise NotFound(f"no roll-out '{reference}'", hint="`windlass rollout history` lists them")
        return _record(rows[0])

    def list(self, name: str = "") -> tuple[RolloutRecord, ...]:
        """Return all roll-outs, or those of one model, the newest first."""
        query = f"{_SELECT} WHERE ? = '' OR name = ? ORDER BY made DESC"
        return tuple(map(_record, self._database.read(query, name, name)))

    def open(self) -> tuple[RolloutRecord, ...]:
        """Return the roll-outs that have not ended, the oldest first."""
        query = f"{_SELECT} WHERE state NOT IN ({', '.join('?' * len(ENDED))}) ORDER BY made"
        return tuple(map(_record, self._database.read(query, *ENDED)))

    def command(self, reference: str, command: Command, by: Actor) -> RolloutRecord:
        """Request the end of a roll-out; an abort takes effect at once if no supervisor drives it."""
        record, now = self.find(reference), self._clock()
        if record.is_ended:
            ended = record.state.replace("_", " ")
            raise AskedWrongly(f"{record.id} has ended: {ended}", hint="start another one")
        state = "aborted" if command == "abort" and not record.driver else record.state

        def work(transaction: Transaction) -> None:
            transaction.execute(
                "UPDATE rollouts SET command = ?, state = ?, changed = ? WHERE id = ? AND state = ?",
                command, state, now, record.id, record.state,
            )  # fmt: skip
            append(transaction, by, Act(f"rollout.{command}", record.candidate, note=record.id), now_s=now)

        self._database.atomically(work, alone=HEAD)
        return self.find(record.id)

    def claim(self, id_: str, driver: str, stable: str) -> bool:
        """Claim a roll-out to drive; False if it has ended, or another live supervisor drives it."""
        now = self._clock()
        rows = self._database.write(
            "UPDATE rollouts SET driver = ?, stable = ?, changed = ?"
            " WHERE id = ? AND (driver IN ('', ?) OR changed < ?)"
            f" AND state NOT IN ({', '.join('?' * len(ENDED))}) RETURNING id",
            driver, stable, now, id_, driver, now - ABANDONED_S, *ENDED,
        )  # fmt: skip
        return bool(rows)

    def change(
        self, id_: str, state: State, *, weight: float = 0.0, reason: str = "", report: dict[str, Any]
    ) -> None:
        """Write the state of a roll-out; its end also goes to the audit log, as an act of the supervisor."""
        now = self._clock()

        def work(transaction: Transaction) -> None:
            rows = transaction.execute(
                "UPDATE rollouts SET state = ?, weight = ?, reason = ?, report = ?, changed = ? WHERE id = ?"
                " RETURNING candidate",
                state, weight, reason, json.dumps(report), now, id_,
            )  # fmt: skip
            if state in ENDED:
                act = Act(f"rollout.{state}", str(rows[0][0]), note=f"{id_}: {reason}")
                append(transaction, Actor("", "supervisor"), act, now_s=now)

        self._database.atomically(work, alone=HEAD if state in ENDED else "")


def _refuse_beside(other: RolloutRecord) -> None:
    if not other.is_ended:
        raise InUse(
            f"{other.id} is under way: {other.candidate} is rolled out",
            hint=f"wait for it, or end it: windlass rollout abort {other.id}",
        )


def _values(record: RolloutRecord) -> tuple[object, ...]:
    return (
        record.id, record.name, record.stable, record.candidate, record.kind,
        record.policy.model_dump_json(), record.held_out, record.who, record.state, record.weight,
        record.command, record.driver, record.reason, json.dumps(record.report), record.made, record.changed,
    )  # fmt: skip


def _record(row: Row) -> RolloutRecord:
    id_, name, stable, candidate, kind, policy, held_out, who, *rest = row
    state, weight, command, driver, reason, report, made, changed = rest
    return RolloutRecord(
        id_, name, stable, candidate, kind, Rollout.model_validate_json(policy), held_out, who,
        state, float(weight), command, driver, reason, json.loads(report), float(made), float(changed),
    )  # fmt: skip
