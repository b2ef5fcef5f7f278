"""Opens the state of a service: one database with the tables of all subjects."""

from __future__ import annotations

import os
from pathlib import Path

from windlass.serve.records.audit_log import AUDIT
from windlass.serve.records.golden_answers import KNOWN
from windlass.serve.records.idempotency_store import ANSWERS
from windlass.serve.records.keys import KEYS
from windlass.serve.records.quotas import QUOTAS
from windlass.serve.records.rollouts import ROLLOUTS
from windlass.serve.records.tenants import TENANTS
from windlass.store.database import Database, open_database, sqlite_url

FILE = "service.db"
VARIABLE = "WINDLASS_STATE"
"""Names the database where no option does; unlike an option, others on the machine cannot read it."""
SCHEMAS = (AUDIT, TENANTS, KEYS, QUOTAS, KNOWN, ROLLOUTS, ANSWERS)


def state_url(home: Path, given: str | None = None) -> str:
    """Return where the state is: as given, as $WINDLASS_STATE says, or HOME/service.db."""
    return given or os.environ.get(VARIABLE) or sqlite_url(home / FILE)


def open_state(url: str) -> Database:
    """Open the state of a service; make what it lacks."""
    return open_database(url, SCHEMAS)
