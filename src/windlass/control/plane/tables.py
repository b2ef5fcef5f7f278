"""The tables of the control plane (docs/formats/control-state.md)."""

from __future__ import annotations

from windlass.store.database import Schema

PLANE = Schema(
    "plane",
    (
        "CREATE TABLE plane_counters (name TEXT PRIMARY KEY, number BIGINT NOT NULL)",
        "INSERT INTO plane_counters VALUES ('version', 0), ('event', 0)",
        """CREATE TABLE plane_jobs (uid TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL,
        kind TEXT NOT NULL, job TEXT NOT NULL, need TEXT NOT NULL, by_whom TEXT NOT NULL,
        submitted_s DOUBLE PRECISION NOT NULL, desired TEXT NOT NULL, priority BIGINT NOT NULL,
        phase TEXT NOT NULL, members BIGINT NOT NULL, attempts BIGINT NOT NULL, preemptions BIGINT NOT NULL,
        reason TEXT NOT NULL, since_s DOUBLE PRECISION NOT NULL, placed_s DOUBLE PRECISION,
        begun_s DOUBLE PRECISION, ended_s DOUBLE PRECISION, version BIGINT NOT NULL)""",
        "CREATE UNIQUE INDEX plane_jobs_live ON plane_jobs (tenant, name) WHERE ended_s IS NULL",
        "CREATE INDEX plane_jobs_version ON plane_jobs (version)",
        "CREATE INDEX plane_jobs_submitted ON plane_jobs (tenant, submitted_s)",
        """CREATE TABLE plane_submits (tenant TEXT NOT NULL, token TEXT NOT NULL, digest TEXT NOT NULL,
        uid TEXT NOT NULL, at_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (tenant, token))""",
        """CREATE TABLE plane_waits (uid TEXT PRIMARY KEY, place BIGINT NOT NULL, reason TEXT NOT NULL)""",
        """CREATE TABLE plane_events (number BIGINT PRIMARY KEY, uid TEXT NOT NULL,
        at_s DOUBLE PRECISION NOT NULL, by_whom TEXT NOT NULL, what TEXT NOT NULL)""",
        "CREATE INDEX plane_events_uid ON plane_events (uid, number)",
        """CREATE TABLE plane_shares (tenant TEXT PRIMARY KEY, weight DOUBLE PRECISION NOT NULL,
        cores DOUBLE PRECISION, memory_bytes BIGINT, gpus BIGINT, max_jobs BIGINT,
        max_priority BIGINT)""",
        """CREATE TABLE plane_usage (tenant TEXT PRIMARY KEY, used DOUBLE PRECISION NOT NULL,
        at_s DOUBLE PRECISION NOT NULL)""",
        """CREATE TABLE plane_leases (name TEXT PRIMARY KEY, epoch BIGINT NOT NULL, holder TEXT NOT NULL,
        address TEXT NOT NULL, beat BIGINT NOT NULL, beat_s DOUBLE PRECISION NOT NULL)""",
        "INSERT INTO plane_leases VALUES ('leader', 0, '', '', 0, 0)",
        "CREATE TABLE plane_facts (name TEXT PRIMARY KEY, fact TEXT NOT NULL)",
    ),
)
