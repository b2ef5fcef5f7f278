"""Known answers of model versions, kept for as long as the version may be loaded again.

They belong to a version, its exact files (by their fingerprint) and how it was computed (engine and
precision): a replica that differs in any of these may answer differently and be right.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from windlass.store.database import Database, Schema

KNOWN = Schema(
    "known",
    (
        "CREATE TABLE known_answers (version TEXT NOT NULL, fingerprint TEXT NOT NULL, engine TEXT NOT NULL,"
        " answers TEXT NOT NULL, made DOUBLE PRECISION NOT NULL,"
        " PRIMARY KEY (version, fingerprint, engine))",
    ),
)


def find_answers(db: Database, version: str, fingerprint: str, engine: str) -> str | None:
    """Return the answers that were recorded first, as JSON."""
    rows = db.read(
        "SELECT answers FROM known_answers WHERE version = ? AND fingerprint = ? AND engine = ?",
        version, fingerprint, engine,
    )  # fmt: skip
    return str(rows[0][0]) if rows else None


def keep_answers(db: Database, version: str, fingerprint: str, engine: str, answers: str) -> str:
    """Record answers unless there are some; return those that are recorded."""
    db.write(
        "INSERT INTO known_answers VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (version, fingerprint, engine) DO NOTHING",
        version, fingerprint, engine, answers, time.time(),
    )  # fmt: skip
    return find_answers(db, version, fingerprint, engine) or answers


def forget_answers(db: Database, version: str) -> None:
    """Delete the answers of a version, for when they were recorded from a faulty engine."""
    db.write("DELETE FROM known_answers WHERE version = ?", version)


def fingerprint_of(folder: Path) -> str:
    """Return a digest of a model directory: of its manifest, or of file sizes and times if it has none."""
    manifest = folder / "manifest.json"
    if manifest.exists():
        return hashlib.sha256(manifest.read_bytes()).hexdigest()
    files = sorted(file for file in folder.iterdir() if file.is_file())
    listed = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(listed).encode()).hexdigest()
