"""The queue of the control API: submits, pages, changes, tenants' keys, and what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.control.plane.world import World, WorldBackend, in_order
from windlass.control.api.app import build_app
from windlass.control.api.control_keys import ControlKeys
from windlass.control.plane.control_plane import ControlPlane, ControlPlaneConfig
from windlass.control.plane.job_store import plane_url
from windlass.control.plane.job_to_group import groups_for
from windlass.control.plane.leader_lease import DatabaseLease
from windlass.control.plane.leader_store import FencedLeaderStore
from windlass.control.plane.queued_job import JobEntry
from windlass.control.plane.reconcile import Reconciler
from windlass.control.scheduler.snapshot import TenantQuota
from windlass.http.listener import bind, settings
from windlass.sdk.failures import ConflictingChange, NotThere, RequestRefused
from windlass.sdk.queue import Queue

JOB = """
name = "poems"
[corpus]
sources = ["poems.txt"]
[cluster]
cores = 2
memory = "1GiB"
"""


class Served:
    """A control API with a queue that moves only when a test says so."""

    def __init__(self, home: Path) -> None:
        self.world, self.keys = World(), ControlKeys(home)
        self.plane = ControlPlane(
            ControlPlaneConfig(
                home=home,
                state=plane_url(home),
                backend_name="made up",
                connect=lambda: WorldBackend(self.world),
                group_of=groups_for(home, "local"),
                decide=in_order,
                reconcile=False,
            )
        )
        lease = DatabaseLease(self.plane.database, "test")
        lease.step(0.0)
        self.ledger = FencedLeaderStore(self.plane.records, lambda: lease.epoch)
        self.key = self.keys.make("ada")
        self.url = ""

    def queue(self, key: str | None = None) -> Queue:
        return Queue(self.url, key or self.key)

    def http(self, key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {key or self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def step(self) -> None:
        """Let a loop begin anew, look once and act."""
        group_of = self.plane.config.group_of
        self.world.now_s += 2.0
        clock = lambda: self.world.now_s  # noqa: E731
        Reconciler(self.ledger, WorldBackend(self.world), group_of, in_order, clock=clock).step()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    app = build_app(tmp_path, plane=found.plane)
    listener = bind("127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, **settings()))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield found
    server.should_exit = True
    thread.join()


def entry(served: Served, name: str = "poems") -> JobEntry:
    return served.plane.records.find(name, "default")


def test_a_job_is_submitted_listed_shown_and_admitted(served: Served) -> None:
    with served.queue() as queue:
        told = queue.submit(JOB, priority=3)
        assert (told["phase"], told["priority"], told["by"]) == ("queued", 3, "ada")
        assert told["need"]["cores"] == 2.0
        assert told["need"]["memory_bytes"] == 1 << 30
        assert [job["name"] for job in queue.list()] == ["poems"]
        served.step()
        assert queue.show("poems")["phase"] == "admitted"
        assert queue.show(told["uid"])["members"] == 1
        assert [event["what"].partition(" ")[0] for event in queue.events("poems")] == ["entered", "admitted"]
        assert queue.plane()["phases"] == {"admitted": 1}


def test_what_waits_says_where_and_why(served: Served) -> None:
    with served.queue() as queue:
        queue.submit(JOB, name="first")
        queue.submit(JOB.replace("cores = 2", "cores = 4"), name="second")
        queue.submit(JOB, name="third", priority=-1)
        served.step()
        jobs = {job["name"]: job for job in queue.list()}
        assert jobs["first"]["place"] is None
        assert (jobs["second"]["place"], jobs["second"]["reason"]) == (1, "there is no room")
        told = queue.explain("third")
        assert told["text"] == "number 2 in the queue: there is no room"
        assert told["ahead"] == ["default/second"]
        assert told["running"] == {"default": 1}
        assert "does not wait" in queue.explain("first")["text"]


def test_the_same_request_sent_twice_is_one_job(served: Served) -> None:
    headers, body = {"idempotency-key": "k1"}, {"job": JOB}
    with served.http() as http:
        first = http.post("/v1/queue", json=body, headers=headers)
        again = http.post("/v1/queue", json=body, headers=headers)
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["uid"] == again.json()["uid"]
        other = http.post("/v1/queue", json={"job": JOB, "priority": 1}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (400, "refused")


def test_a_stop_and_a_priority_are_written_for_any_leader(served: Served) -> None:
    with served.queue() as queue:
        queue.submit(JOB)
        assert queue.set_priority("poems", 9)["priority"] == 9
        assert queue.stop("poems")["desired"] == "stop"
        served.step()
        assert queue.wait("poems", deadline=5)["phase"] == "stopped"
        assert queue.stop("poems")["phase"] == "stopped", "to stop what is over changes nothing"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "give either 'job'"),
    ({"job": JOB, "service": {"model": "m"}}, "give either 'job'"),
    ({"job": "name = 'a'\n[trian]\n"}, "unknown key 'trian'"),
    ({"job": "name = "}, "not valid TOML"),
    ({"job": JOB, "priority": 5000}, "priority"),
    ({"job": JOB, "name": "../etc"}, "name"),
    ({"job": JOB + "nodes = 3\n[layout]\ndp = 4\n"}, "cannot share equally"),
    ({"service": {"model": "m", "port": 0}}, "port"),
    ({"job": JOB, "proirity": 1}, "unknown key 'proirity'"),
    ({"job": JOB, "tenant": "A b"}, "tenant"),
]


def test_what_cannot_be_is_refused_with_the_reason(served: Served) -> None:
    with served.http() as http:
        for body, said in REFUSED:
            answer = http.post("/v1/queue", json=body)
            assert answer.status_code == 400, body
            told = answer.json()["error"]
            assert said in f"{told['message']} {told['hint']}"
    assert served.plane.records.list() == []


def test_a_name_that_is_taken_and_one_that_is_not_there(served: Served) -> None:
    with served.queue() as queue:
        queue.submit(JOB)
        with pytest.raises(ConflictingChange, match="already exists and is queued"):
            queue.submit(JOB)
        with pytest.raises(NotThere, match="no job 'poem'"):
            queue.show("poem")
        with pytest.raises(RequestRefused, match="no phase 'waiting'"):
            queue.list(phase="waiting")


def test_a_tenants_key_sees_its_own_alone(served: Served) -> None:
    bob = served.keys.make("bob", tenant="bob")
    with served.queue() as all_of_them, served.queue(bob) as his, served.http(bob) as http:
        all_of_them.submit(JOB, name="theirs")
        assert his.submit(JOB, name="own")["tenant"] == "bob"
        assert [job["name"] for job in his.list()] == ["own"]
        assert {job["name"] for job in all_of_them.list()} == {"own", "theirs"}
        with pytest.raises(NotThere):
            his.show("theirs")
        with pytest.raises(NotThere):
            his.show(entry(served, "theirs").uid)
        with pytest.raises(NotThere):
            his.submit(JOB, tenant="default")
        served.step()
        assert his.explain("own")["running"] == {"bob": 1, "others": 1}
        assert http.get("/v1/jobs").json() == {"jobs": []}
        assert http.get("/v1/plan/choices").status_code == 404
        assert http.put("/v1/shares/bob", json={"weight": 100.0}).status_code == 403


def test_shares_are_set_by_administrators(served: Served) -> None:
    with served.queue() as queue:
        told = queue.set_share("bob", weight=2, cores=8, jobs=4)
        assert (told["weight"], told["cores"], told["gpus"], told["jobs"]) == (2.0, 8.0, None, 4)
        assert [share["tenant"] for share in queue.shares()] == ["bob"]
        with pytest.raises(RequestRefused):
            queue.set_share("bob", weight=-1)
    share: TenantQuota = served.plane.records.shares()["bob"]
    assert (share.weight, share.quota.cores, share.max_jobs) == (2.0, 8.0, 4)


def test_pages_continue_where_the_last_one_ended(served: Served) -> None:
    with served.queue() as queue, served.http() as http:
        for number in range(5):
            queue.submit(JOB, name=f"j{number}")
        names: list[str] = []
        after: str | None = ""
        while after is not None:
            page = http.get("/v1/queue", params={"limit": 2, **({"after": after} if after else {})}).json()
            names += [job["name"] for job in page["jobs"]]
            after = page["next"]
        assert names == [f"j{number}" for number in range(5)]
        assert http.get("/v1/queue", params={"after": "nonsense"}).status_code == 400


def test_a_service_is_kept_by_a_group_that_never_ends(served: Served) -> None:
    with served.queue() as queue:
        told = queue.submit(service={"model": "poems@prod", "port": 8123, "cluster": {"cores": 1}})
        assert (told["kind"], told["name"], told["need"]["endless"]) == ("service", "serve-poems", True)
        served.step()
    (standing,) = served.world.groups.values()
    assert standing.group.restart.policy == "always"
    assert standing.group.args[:2] == ("serve", "poems@prod")


def test_without_a_queue_its_paths_say_so(tmp_path: Path) -> None:
    from starlette.testclient import TestClient

    key = ControlKeys(tmp_path).make("ada")
    with TestClient(build_app(tmp_path), base_url="http://127.0.0.1") as client:
        answer = client.get("/v1/queue", headers={"authorization": f"Bearer {key}"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "there is no queue here")
