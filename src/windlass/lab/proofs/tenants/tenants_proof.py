"""Proves that a hostile tenant sees nothing of another, and slows it no more than its share.

    a control plane -> small jobs and requests of the victim, alone -> the same under attack

Both tenants have the same weight, and the hostile one has a quota of half the machine. From outside it floods
the API (hostile_client.py); from inside, its processes fork, fill the disk, print, allocate memory and spy
(hostile_job.py). Each of the victim's jobs computes a fixed amount; all of them must succeed.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from windlass.cluster.backend import Group, Restart
from windlass.cluster.backends import LOCAL
from windlass.cluster.local.local_backend import LocalBackend
from windlass.cluster.process.disk_usage import bytes_of
from windlass.cluster.process.sandbox import others_can_execute, others_can_import
from windlass.control.api.control_keys import ControlKeys
from windlass.control.tenants.tenant_registry import TenantRegistry
from windlass.lab.proofs.tenants.hostile_client import JOB, HostileClient
from windlass.lab.proofs.tenants.hostile_job import CANARY
from windlass.lab.proofs.tenants.shared_service import PAUSE_S, TOKENS, ask_beside
from windlass.spec.errors import ProcessFailed
from windlass.spec.processes import HOSTILE_JOB, TENANT_PROOF
from windlass.spec.tenancy import Allowance, TenantResourceQuota

USERS = range(291_500, 291_510)
PYTHONS = (sys.executable, "/usr/bin/python3")
VICTIM, HOSTILE = "victim", "hostile"
WORK_S = 0.3
"""Seconds of computation in each of the victim's jobs."""
MAX_SLOWDOWN = 2.0
CONSTANT_S = 2.0
"""The bound: with equal weights a job takes at most twice as long as alone, plus this much for admission and
start-up, which the machine does one at a time."""
REQUEST_CONSTANT_S = (TOKENS + 1) * PAUSE_S
"""The same for a request: before each of its tokens the engine may run a prefill chunk of another tenant."""
DISK, LOG, PROCESSES, MEMORY = 24 << 20, 1 << 20, 48, 512 << 20
FORKS = 150
JOB_S = 120.0
"""Seconds after which a job of the victim counts as lost."""
LOOK_S = 0.02
SHOWN = 20
SURE = 5
"""Polls without groups, 0.1 s apart, after which a cluster counts as empty."""

Tell = Callable[[str], None]


@dataclass
class VictimTimes:
    """The victim's times: its jobs from submit to end, and its requests."""

    jobs_s: list[float] = field(default_factory=list)
    asks_s: list[float] = field(default_factory=list)
    lost: int = 0


def prove_tenants(tell: Tell, *, jobs: int = 6, requests: int = 60) -> dict[str, Any]:
    """Run the victim alone and under attack. Return the figures, and what the attacker saw."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-tenants-", dir="/var/tmp"))
    folder.chmod(0o711)
    try:
        result = TenantsProof(folder, jobs, tell).run()
        _add_requests(result, folder, requests, tell)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_apart(figures: dict[str, Any]) -> bool:
    """Whether the hostile tenant saw nothing, and slowed the victim no more than its share."""
    nothing = ("foreign_seen", "tricks_admitted", "jobs_lost", "requests_lost", "processes_left")
    slow = [what for what in ("job_s", "request_s") if figures[f"{what}_beside"] > figures[f"{what}_bound"]]
    return not slow and not any(figures[name] for name in nothing)


def _add_requests(result: dict[str, Any], folder: Path, count: int, tell: Tell) -> None:
    """Add the results of a service shared by both tenants."""
    place = folder / "service"
    place.mkdir(mode=0o700)
    alone, beside, theirs = ask_beside(place, count, tell)
    before, after = _middle(alone.took_s), _middle(beside.took_s)
    figures = result["figures"]
    figures["foreign_seen"] += len(theirs.seen)
    result["seen"] = (result["seen"] + theirs.seen)[:SHOWN]
    result["service_answers"] = dict(theirs.statuses)
    figures |= {
        "requests": count,
        "requests_lost": 2 * count - alone.statuses[200] - beside.statuses[200],
        "request_s_alone": before,
        "request_s_beside": after,
        "request_s_bound": MAX_SLOWDOWN * before + REQUEST_CONSTANT_S,
        "request_p99_s_beside": _high(beside.took_s),
        "hostile_service_requests": sum(theirs.statuses.values()),
        "hostile_service_answered": theirs.statuses[200],
    }


class TenantsProof:
    """One proof in a scratch home."""

    def __init__(self, home: Path, jobs: int, tell: Tell) -> None:
        self._home, self._jobs, self._tell = home, jobs, tell
        self._python = next((p for p in PYTHONS if others_can_execute(p)), "")
        apart = os.geteuid() == 0 and bool(self._python) and others_can_import()
        self._registry = TenantRegistry(
            home, users=USERS if apart else None, python=self._python if apart else ""
        )
        self._mark = secrets.token_hex(8)
        keys = ControlKeys(home)
        names = {VICTIM: f"{VICTIM}-{self._mark}", HOSTILE: HOSTILE}
        self._keys = {tenant: keys.make(name, tenant=tenant) for tenant, name in names.items()}
        self._backend = LocalBackend(home / LOCAL)

    def run(self) -> dict[str, Any]:
        half = max(1.0, len(os.sched_getaffinity(0)) / 2)
        quota = TenantResourceQuota(
            cores=half, memory=MEMORY, disk=DISK, log=LOG, processes=PROCESSES, waiting=200, jobs=50
        )
        self._registry.allow(HOSTILE, lambda _: Allowance(quota=quota), "proof")
        self._registry.allow(VICTIM, lambda _: Allowance(), "proof")
        self._registry.context(VICTIM).home.mkdir(parents=True, mode=0o700)
        try:
            with _control(self._home, self._registry) as url:
                self._tell(f"{self._jobs} jobs of the victim, alone")
                alone = self._victim_work(url, "alone")
                self._tell("the same under attack")
                hostile_client = HostileClient(url, self._keys[HOSTILE], (self._mark,))
                with hostile_client.under_way(), self._hostile_jobs() as hostile_jobs:
                    beside = self._victim_work(url, "beside")
                    attacks = {name: self._attack_result(name) for name in hostile_jobs}
        finally:
            self._clear()  # once nothing launches waiting jobs
        return self._result(alone, beside, hostile_client, attacks)

    def _victim_work(self, url: str, what: str) -> VictimTimes:
        """Do the victim's work: one job after another, and requests from time to time."""
        times, over = VictimTimes(), threading.Event()
        headers = {"authorization": f"Bearer {self._keys[VICTIM]}"}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            asking = threading.Thread(target=_ask, args=(client, times, over))
            asking.start()
            try:
                for number in range(self._jobs):
                    self._job(client, f"work.{int(WORK_S * 1000)}m.victim-{number}-{what}", times)
            finally:
                over.set()
                asking.join()
        return times

    def _job(self, client: httpx.Client, name: str, times: VictimTimes) -> None:
        began_s = time.monotonic()
        text = JOB.format(name=name, source="python:stdlib", cores=1, memory="64MiB")
        answer = client.post("/v1/queue", json={"job": text})
        phase = "" if answer.status_code == 201 else "refused"
        while phase not in ("done", "failed", "stopped", "refused") and time.monotonic() - began_s < JOB_S:
            time.sleep(LOOK_S)
            phase = client.get(f"/v1/queue/{name}").json().get("phase", phase)
        times.jobs_s.append(time.monotonic() - began_s)
        times.lost += phase != "done"

    @contextlib.contextmanager
    def _hostile_jobs(self) -> Iterator[dict[str, Group]]:
        """Run the hostile tenant's processes in its sandbox."""
        targets = [
            self._home / "tenants" / VICTIM, self._home / "plane.db", self._home / "service.db",
            self._home / "control" / "keys.json", self._home / "secrets", self._home / "cluster" / VICTIM,
        ]  # fmt: skip
        attacks = {
            "forks": [str(FORKS)], "fill": ["300"], "chatter": ["60"], "eat": ["2000"],
            "peek": [str(path) for path in targets],
        }  # fmt: skip
        isolation = self._registry.context(HOSTILE).isolation
        groups = {
            name: Group(
                f"guest-{name}",
                HOSTILE_JOB,
                (name, *rest),
                tenant=HOSTILE,
                restart=Restart("never"),
                isolation=isolation,
            )
            for name, rest in attacks.items()
        }
        order = ("peek", "chatter", "forks", "eat", "fill")  # a full disk would end all the others
        started = threading.Thread(target=self._launch, args=([groups[name] for name in order],))
        started.start()
        try:
            yield groups
        finally:
            started.join()

    def _launch(self, groups: list[Group]) -> None:
        """Launch one after another; wait for the end of each except the last, which runs long."""
        for group in groups:
            self._backend.launch(group)
            self._await_over(group.key)

    def _await_over(self, key: str) -> None:
        until = time.monotonic() + 20.0
        while time.monotonic() < until:
            seen = self._backend.observe(key)
            if seen is not None and seen.over:
                return
            time.sleep(LOOK_S)

    def _attack_result(self, name: str) -> dict[str, Any]:
        """Return how a hostile job ended, and its result, if it could write it."""
        self._await_over(f"{HOSTILE}/guest-{name}")
        seen = self._backend.observe(f"{HOSTILE}/guest-{name}")
        result: dict[str, Any] = {"state": seen.members[0].state if seen else "", "reason": ""}
        if seen is not None:
            log = Path(seen.members[0].logs)
            result |= {
                "reason": seen.members[0].reason,
                "log_bytes": log.stat().st_size if log.exists() else 0,
            }
        with contextlib.suppress(OSError, ValueError):
            result |= json.loads((self._registry.context(HOSTILE).home / f"{name}.json").read_bytes())
        return result

    def _clear(self) -> None:
        """Stop all groups, including those that were being launched when the control plane ended."""
        until, empty = time.monotonic() + 60.0, 0
        while empty < SURE and time.monotonic() < until:
            groups = self._backend.survey().groups
            empty = 0 if groups else empty + 1
            for standing in groups:
                if not standing.stopping:
                    self._backend.stop(standing.group.key)
            time.sleep(0.1)
        for common in Path("/var/tmp").glob("windlass-guest-*"):
            with contextlib.suppress(OSError):
                if self._registry.users is None or common.stat().st_uid in self._registry.users:
                    common.unlink()

    def _result(
        self,
        alone: VictimTimes,
        beside: VictimTimes,
        hostile_client: HostileClient,
        attacks: dict[str, dict[str, Any]],
    ) -> dict[str, Any]:
        before, after = _middle(alone.jobs_s), _middle(beside.jobs_s)
        seen = [*hostile_client.seen, *attacks["peek"].get("seen", ["the spying job left no result"])]
        bound = MAX_SLOWDOWN * before + CONSTANT_S
        figures = {
            "jobs": len(beside.jobs_s),
            "jobs_lost": alone.lost + beside.lost,
            "foreign_seen": len(seen),
            "tricks_admitted": len(hostile_client.admitted),
            "job_s_alone": before,
            "job_s_beside": after,
            "job_s_bound": bound,
            "slowdown": after / before,
            "ask_p99_s_alone": _high(alone.asks_s),
            "ask_p99_s_beside": _high(beside.asks_s),
            "hostile_requests": sum(hostile_client.answers.values()),
            "hostile_refused": sum(n for code, n in hostile_client.answers.items() if code >= 400),
            "hostile_jobs_taken": hostile_client.answers[201],
            "forks_asked": FORKS,
            "forks_made": attacks["forks"].get("made", 0),
            "log_bytes": attacks["chatter"].get("log_bytes", 0),
            "disk_bytes": bytes_of(
                self._registry.context(HOSTILE).home, self._registry.context(HOSTILE).uid, 1 << 40
            ),
            "processes_left": _left(self._registry),
            "users_apart": int(self._registry.users is not None),
        }
        return {
            "figures": figures,
            "seen": seen[:SHOWN],
            "hostile_jobs": attacks,
            "answers": dict(hostile_client.answers),
        }


@contextlib.contextmanager
def _control(home: Path, registry: TenantRegistry) -> Iterator[str]:
    """Run a control process with secrets in its environment that no tenant may see."""
    command = [sys.executable, "-m", TENANT_PROOF, "--home", str(home)]
    if registry.users is not None:
        command += [
            "--users",
            f"{registry.users.start}-{registry.users.stop - 1}",
            "--python",
            registry.python,
        ]
    log = home / "control.log"
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            env={**os.environ, CANARY: secrets.token_hex(8)},
        )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise ProcessFailed(f"the control process ended at its start: {log.read_text()[-500:]}")
        yield str(json.loads(line)["listening"]["url"])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _ask(client: httpx.Client, times: VictimTimes, over: threading.Event) -> None:
    while not over.wait(0.05):
        began_s = time.monotonic()
        with contextlib.suppress(httpx.HTTPError):
            client.get("/v1/plane").raise_for_status()
            times.asks_s.append(time.monotonic() - began_s)


def _left(registry: TenantRegistry) -> int:
    """Count the remaining processes of tenants' users."""
    users, found = registry.users or range(0), 0
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            found += entry.name.isdigit() and entry.stat().st_uid in users
    return found


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _high(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] if values else 0.0
