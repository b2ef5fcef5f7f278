"""Answers kept by idempotency key, so that a repeated request is not computed, or counted, twice.

    claim (no other gateway answers it meanwhile) -> keep (the answer, for a day) or release (it failed)

A row belongs to a tenant and a key of the client's choice, which is stored as a digest only. The number of
rows for each tenant and the size of an answer are bounded. docs/formats/service-state.md has the table.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from windlass.store.database import Database, Schema, Transaction

ANSWERS = Schema(
    "answers",
    (
        """CREATE TABLE answers (tenant TEXT NOT NULL, key_digest TEXT NOT NULL, request_digest TEXT NOT NULL,
        claim TEXT NOT NULL, body TEXT, until_s DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (tenant, key_digest))""",
        "CREATE INDEX answers_until ON answers (until_s)",
    ),
)
KEPT_S = 86_400.0
CLAIM_S = 600.0
"""How long a claim holds if its gateway dies."""
MAX_ANSWERS = 1000
MAX_ANSWER_BYTES = 256 << 10


@dataclass(frozen=True)
class Repeatable:
    """A request that may be repeated: its tenant, the client's idempotency key, and its body."""

    tenant: str
    key: str
    request: bytes

    @property
    def key_digest(self) -> str:
        return hashlib.sha256(self.key.encode()).hexdigest()

    @property
    def request_digest(self) -> str:
        return hashlib.sha256(self.request).hexdigest()


@dataclass(frozen=True)
class KnownRequest:
    """The state of a request: claimed by the caller, running elsewhere, a different body, or answered."""

    state: Literal["claimed", "running", "different", "answered"]
    body: str = ""


def claim(database: Database, request: Repeatable, claimant: str, now: float) -> KnownRequest:
    """Look a request up, and claim it if no other has."""

    def work(transaction: Transaction) -> KnownRequest:
        transaction.execute("DELETE FROM answers WHERE until_s <= ?", now)
        rows = transaction.execute(
            "SELECT request_digest, body FROM answers WHERE tenant = ? AND key_digest = ?",
            request.tenant,
            request.key_digest,
        )
        if rows:
            return _known(request, *rows[0])
        _make_room(transaction, request.tenant)
        transaction.execute(
            "INSERT INTO answers VALUES (?, ?, ?, ?, NULL, ?)",
            request.tenant,
            request.key_digest,
            request.request_digest,
            claimant,
            now + CLAIM_S,
        )
        return KnownRequest("claimed")

    return database.atomically(work, light=True, alone="answers")


def keep(database: Database, request: Repeatable, claimant: str, body: str, now: float) -> None:
    """Keep the answer of a claimed request; if it is too large, release the claim."""
    if len(body.encode()) > MAX_ANSWER_BYTES:
        release(database, request, claimant)
        return
    database.write(
        "UPDATE answers SET body = ?, until_s = ? WHERE tenant = ? AND key_digest = ? AND claim = ?",
        body,
        now + KEPT_S,
        request.tenant,
        request.key_digest,
        claimant,
        light=True,
    )


def release(database: Database, request: Repeatable, claimant: str) -> None:
    """Release a claim, so that the request may be tried again."""
    database.write(
        "DELETE FROM answers WHERE tenant = ? AND key_digest = ? AND claim = ? AND body IS NULL",
        request.tenant,
        request.key_digest,
        claimant,
        light=True,
    )


def _known(request: Repeatable, request_digest: str, body: str | None) -> KnownRequest:
    if request_digest != request.request_digest:
        return KnownRequest("different")
    return KnownRequest("running") if body is None else KnownRequest("answered", body)


def _make_room(transaction: Transaction, tenant: str) -> None:
    """Delete the oldest answers of a tenant that has reached the maximum."""
    transaction.execute(
        "DELETE FROM answers WHERE tenant = ? AND key_digest IN (SELECT key_digest FROM answers"
        " WHERE tenant = ? AND body IS NOT NULL ORDER BY until_s DESC LIMIT ? OFFSET ?)",
        tenant,
        tenant,
        MAX_ANSWERS,
        MAX_ANSWERS - 1,
    )
