"""Proves that a control plane whose processes are killed again and again loses no job and runs none twice.

    two control processes, jobs all the time -> kill -9 one at a random moment, start it again -> ... -> count

Jobs are processes of this machine (recording_job.py) that record what they do; some are preempted. Every
tenth time a process is frozen for longer than its lease and woken up again.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windlass.cluster.backends import LOCAL
from windlass.cluster.local.local_backend import LocalBackend
from windlass.control.api.control_keys import ControlKeys
from windlass.control.plane.job_store import JobStore, open_plane, plane_url
from windlass.control.plane.leader_lease import STALE_S, leader
from windlass.control.plane.queued_job import OVER, JobEntry
from windlass.lab.proofs.control.control_client import ControlClient
from windlass.lab.proofs.control.pair import ControllerProcess, pair, seconds_to_another
from windlass.lab.proofs.control.proof_process import FOLDER, SECONDS
from windlass.lab.proofs.control.recording_job import EVENTS

PROMISED_S = 5.0
"""Maximum seconds until another process leads."""
WAITING = 12
"""Jobs kept waiting in the queue while processes are killed."""
PAUSE_S = 1.5
FREEZE_S = 2 * STALE_S
LAST_S = 300.0
"""Timeout of the last jobs, in seconds."""
LEADERS = 0.75
"""Share of kills that hit the leader."""

Tell = Callable[[str], None]


def prove_control(
    home: Path, kills: int, tell: Tell, *, seed: int = 1, state: str | None = None
) -> dict[str, Any]:
    """Kill control processes under load. Return the figures, and the outcome of each job."""
    folder = home / "prove" / "control"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    url = plane_url(folder, state)
    database, key = open_plane(url), ControlKeys(folder).make("proof")
    records, rng = JobStore(database), random.Random(seed)
    try:
        with pair(folder, url) as both:
            load = SubmitLoad(records, [each.url for each in both], key, random.Random(seed))
            with load:
                deaths = [_strike(both, records, rng, number, kills, tell) for number in range(kills)]
            began = time.monotonic()
            _await_over(records, LocalBackend(folder / LOCAL), tell)
            settle_s = time.monotonic() - began
        return _result(folder, records, load, deaths, settle_s)
    finally:
        database.close()
        _clear(folder)


class SubmitLoad:
    """Submits jobs in a thread, through any process that answers."""

    def __init__(self, records: JobStore, urls: Sequence[str], key: str, rng: random.Random) -> None:
        self._records, self._rng = records, rng
        self._client = ControlClient(urls, key)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.taken: list[str] = []
        """Jobs whose submit was acknowledged."""
        self.submit_s: list[float] = []
        self.refused = 0

    def __enter__(self) -> SubmitLoad:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        for number in itertools.count():
            while self._records.counts().get("queued", 0) >= WAITING and not self._over.is_set():
                self._over.wait(0.05)
            if self._over.is_set():
                return
            self._submit(f"w{number}")

    def _submit(self, name: str) -> None:
        began, seconds = time.perf_counter(), self._rng.choice((0.1, 0.5, 2.0))
        cores, priority = self._rng.choice((0.25, 0.5, 1.0)), self._rng.choice((0, 0, 0, 5))
        text = f'name = "{name}"\n[cluster]\ncores = {cores}\nenv = {{{SECONDS} = "{seconds}"}}\n'
        job = self._client.submit(text, priority=priority)
        if job is None:
            self.refused += 1
            return
        self.taken.append(str(job["uid"]))
        self.submit_s.append(time.perf_counter() - began)


def _strike(
    both: Sequence[ControllerProcess],
    records: JobStore,
    rng: random.Random,
    number: int,
    kills: int,
    tell: Tell,
) -> dict[str, Any]:
    """Kill one process at a random time and start it again; every tenth time also freeze and wake one."""
    time.sleep(rng.uniform(0.0, PAUSE_S))
    database = records.database
    led = next((each for each in both if each.leads(database)), both[0])
    other = both[1] if led is both[0] else both[0]
    victim = led if rng.random() < LEADERS else other
    freezes = number % 10 == 9
    frozen_s = _freeze(led, records) if freezes else None
    if freezes:
        victim = other  # it has become the leader
    epoch, leads = leader(database)[0], victim.leads(database)
    victim.kill()
    began = time.monotonic()
    victim.start_again()
    failover_s = seconds_to_another(database, epoch) if leads else None
    victim.listen()
    phases = records.counts()
    outcome = f"another led after {failover_s:.2f} s" if failover_s is not None else "it did not lead"
    over = sum(count for phase, count in phases.items() if phase in OVER)
    tell(f"kill {number + 1} of {kills}: {outcome}; {over} jobs over, {sum(phases.values()) - over} not")
    back_s = time.monotonic() - began
    return {"failover_s": failover_s, "froze": freezes, "frozen_s": frozen_s, "back_s": back_s}


def _freeze(led: ControllerProcess, records: JobStore) -> float | None:
    """Freeze the leader for longer than its lease; return the seconds until another process led.

    None if it was frozen inside a write: it then locks the SQLite file, and no other process can write.
    """
    epoch = leader(records.database)[0]
    began = time.monotonic()
    led.freeze()
    found = seconds_to_another(records.database, epoch, max_s=30.0)
    time.sleep(max(0.0, FREEZE_S - (time.monotonic() - began)))
    led.thaw()
    return found


def _await_over(records: JobStore, backend: LocalBackend, tell: Tell) -> None:
    """Wait until all jobs have ended and their groups are removed."""
    until, said = time.monotonic() + LAST_S, 0.0
    while time.monotonic() < until:
        left = sum(count for phase, count in records.counts().items() if phase not in OVER)
        if not left and not backend.survey().groups:
            return
        if time.monotonic() - said > 5.0:
            said = time.monotonic()
            tell(f"{left} jobs have not ended yet")
        time.sleep(0.2)


def _result(
    folder: Path, records: JobStore, load: SubmitLoad, deaths: Sequence[dict[str, Any]], settle_s: float
) -> dict[str, Any]:
    entries = {entry.uid: entry for entry in _all(records)}
    events = {uid: _events_of(folder, entry) for uid, entry in entries.items()}
    failovers = sorted(death["failover_s"] for death in deaths if death["failover_s"] is not None)
    frozen = sorted(death["frozen_s"] for death in deaths if death["frozen_s"] is not None)
    lost = [uid for uid in load.taken if uid not in entries or entries[uid].phase != "done"]
    lost += [uid for uid, words in events.items() if not words["ended"] and uid not in lost]
    figures = {
        "kills": len(deaths),
        "kills_of_the_leader": len(failovers),
        "freezes": sum(death["froze"] for death in deaths),
        "freezes_within_a_write": sum(death["froze"] and death["frozen_s"] is None for death in deaths),
        "jobs": len(entries),
        "lost": len(lost),
        "run_twice": sum(words["ended"] + words["twice"] > 1 for words in events.values()),
        "overlaps": sum(words["overlap"] for words in events.values()),
        "preemptions": sum(entry.preemptions for entry in entries.values()),
        "launched_after_their_end": sum(words["again"] for words in events.values()),
        "failover_p50_s": _quantile(failovers, 0.5),
        "failover_p99_s": _quantile(failovers, 0.99),
        "failover_worst_s": round(max(failovers, default=0.0), 3),
        "frozen_failover_worst_s": round(max(frozen, default=0.0), 3),
        "submits_not_answered": load.refused,
        "submit_p50_s": _quantile(sorted(load.submit_s), 0.5),
        "submit_p99_s": _quantile(sorted(load.submit_s), 0.99),
        "settle_s": round(settle_s, 3),
        "groups_left": len(LocalBackend(folder / LOCAL).survey().groups),
    }
    wrong = [entries[uid].facts() for uid in lost if uid in entries]
    return {"figures": figures, "wrong": wrong, "deaths": list(deaths)}


def is_safe(figures: dict[str, float]) -> bool:
    """Whether no job was lost or run twice, and another process led soon each time."""
    harmless = not any(figures[name] for name in ("lost", "run_twice", "overlaps"))
    return harmless and figures["failover_worst_s"] <= PROMISED_S


def _all(records: JobStore) -> list[JobEntry]:
    entries: list[JobEntry] = []
    while page := records.list(
        after=(entries[-1].submitted_s, entries[-1].uid) if entries else None, limit=500
    ):
        entries += page
    return entries


def _events_of(folder: Path, entry: JobEntry) -> Counter[str]:
    file = folder / FOLDER / entry.group / EVENTS
    lines = file.read_text().splitlines() if file.exists() else []
    return Counter(line.partition(" ")[0] for line in lines)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else 0.0


def _clear(folder: Path) -> None:
    """Stop the remaining jobs."""
    backend = LocalBackend(folder / LOCAL)
    for standing in backend.survey().groups:
        backend.stop(standing.group.key)
