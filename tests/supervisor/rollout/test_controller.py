"""The director: wishes in a real database and registry, replicas played by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.registry.versions import Registry
from windlass.serve.records.audit_log import Actor
from windlass.serve.records.rollouts import RolloutRecord, Rollouts
from windlass.serve.records.state import open_state
from windlass.spec.errors import InUse, StoreFailed
from windlass.spec.rollout import HealthChecks, Rollout
from windlass.store.database import Database, sqlite_url
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup
from windlass.supervisor.health.monitor import HealthWatch
from windlass.supervisor.rollout.controller import RolloutController
from windlass.supervisor.state import RunningReplica, ServiceState

ME = Actor("", "cli tester")
POLICY = Rollout(gate=False, requests=0, seconds=0.5, standby=20)


class Service:
    """A service whose replicas run once they are wanted; those of the old version if a test says so."""

    def __init__(self, home: Path, db: Database) -> None:
        self.registry, self.rollouts = Registry(home), Rollouts(db)
        for number in (1, 2, 3):
            writer = DirectoryWriter(StoreDir(home / f"source-{number}"))
            writer.write("config.json", b'{"n": %d}' % number)
            writer.commit({"kind": "model"})
            self.registry.register("base", home / f"source-{number}")
        self.registry.promote("base@1")
        self.director = RolloutController(home, db, POLICY, HealthWatch(HealthChecks(), db))
        first = self.registry.find("base@1")
        self.wanted = DesiredService((ReplicaGroup((Item("base@1", first.path, first.aliases),), 2),))
        self.now = 0.0
        self.old_answers = False

    def step(self, steps: int = 1, **more: object) -> None:
        for _ in range(steps):
            self.now += 1.0
            running = tuple(
                RunningReplica(f"{g.version}-{n}", g.version, Path("/none"), 1, "ready", 0.0, 0.0)
                for g in self.wanted.groups
                for n in range(g.replicas)
                if g.version != "base@1" or self.old_answers
            )
            view = ServiceState(self.wanted, running, **more)  # type: ignore[arg-type]
            self.wanted = self.director.decide(view, self.now).wanted or self.wanted

    def weights(self) -> dict[str, float]:
        return {group.version: group.weight for group in self.wanted.groups}

    def aliases(self) -> dict[str, tuple[str, ...]]:
        return {group.version: group.items[0].aliases for group in self.wanted.groups}

    def newest(self) -> RolloutRecord:
        return self.rollouts.find("base")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    db = open_state(sqlite_url(tmp_path / "service.db"))
    made = Service(tmp_path, db)
    yield made
    made.director.close()
    db.close()


def test_a_request_of_another_process_is_taken_and_driven(service: Service) -> None:
    service.rollouts.start("base@2", "canary", POLICY, ME)
    service.step(3)
    assert service.weights() == {"base@1": 0.95, "base@2": 0.05}
    assert (service.newest().stable, service.newest().state) == ("base@1", "canary")


def test_a_promoted_version_becomes_prod_and_the_old_one_leaves_after_its_standby(service: Service) -> None:
    service.rollouts.start("base@2", "canary", POLICY, ME)
    service.step(3)
    service.rollouts.command("base", "promote", ME)
    service.step(2)
    assert service.newest().state == "promoted"
    assert str(service.registry.find("base@prod")) == "base@2"
    assert service.weights() == {"base@1": 0.0, "base@2": 1.0}
    assert service.wanted.standby == ("base@1",)
    assert service.aliases() == {"base@1": ("previous",), "base@2": ("prod",)}
    service.step(25)
    assert service.weights() == {"base@2": 1.0}
    assert service.wanted.standby == ()


def test_an_aborted_version_leaves_everything_as_it_was(service: Service) -> None:
    before = service.wanted
    service.rollouts.start("base@2", "canary", POLICY, ME)
    service.step(3)
    service.rollouts.command("base", "abort", ME)
    service.step(2)
    assert service.wanted == before
    assert str(service.registry.find("base@prod")) == "base@1"


def test_a_version_that_cannot_start_is_rolled_back_with_a_report(service: Service, tmp_path: Path) -> None:
    service.rollouts.start("base@2", "canary", POLICY, ME)
    service.step(2, given_up={"base@2": "the engine process ended with code 1"})
    record = service.newest()
    assert record.state == "rolled_back"
    assert "ended with code 1" in record.reason
    assert "ended with code 1" in (tmp_path / "rollouts" / record.id / "report.md").read_text()


def test_a_version_whose_tokenizer_is_broken_is_rolled_back(service: Service, tmp_path: Path) -> None:
    writer = DirectoryWriter(StoreDir(tmp_path / "broken"))
    writer.write("config.json", b"{}")
    writer.write("tokenizer.json", b"{")
    writer.commit({"kind": "model"})
    service.registry.register("base", tmp_path / "broken")
    service.rollouts.start("base@4", "canary", POLICY, ME)
    service.old_answers = True
    service.step(5)
    assert service.newest().state == "rolled_back"
    assert "tokenizer.json" in service.newest().reason


def test_a_version_that_is_served_already_or_gone_is_refused(service: Service) -> None:
    for candidate, said in (("base@1", "already served"), ("base@9", "no version 9")):
        service.rollouts.start(candidate, "canary", POLICY, ME)
        service.step(2)
        record = service.newest()
        assert record.state == "rolled_back"
        assert said in record.reason


def test_a_model_that_shares_its_engine_cannot_be_rolled_out(service: Service) -> None:
    (group,) = service.wanted.groups
    service.wanted = DesiredService((ReplicaGroup((*group.items, Item("other@1", Path("/other")))),))
    service.rollouts.start("base@2", "canary", POLICY, ME)
    service.step(2)
    assert "shares its engines" in service.newest().reason


def test_an_alias_that_is_moved_by_hand_is_followed(service: Service) -> None:
    service.step(2)
    service.registry.promote("base@3")
    service.step(4)
    record = service.newest()
    assert (record.candidate, record.kind, record.who) == ("base@3", "blue_green", "supervisor")
    assert service.weights()["base@3"] == 1.0
    assert service.aliases()["base@1"] == (
        "prod",
    )  # whoever asks for base@prod by name is answered meanwhile


def test_aliases_are_put_back_when_one_was_moved_to_a_version_that_fails(service: Service) -> None:
    service.registry.promote("base@2")
    service.registry.promote("base@1")
    before = service.registry.aliases("base")
    service.step(2)
    service.registry.promote("base@3")
    service.step(1)
    service.step(2, given_up={"base@3": "it ended with code 1"})
    assert service.newest().state == "rolled_back"
    assert service.registry.aliases("base") == before == {"prod": 1, "previous": 2}


def test_a_version_that_is_only_registered_is_not_rolled_out(service: Service, tmp_path: Path) -> None:
    service.registry.put_back("base", {})
    service.step(2)
    service.registry.register("base", tmp_path / "source-1")
    service.step(2)
    assert service.weights() == {"base@1": 1.0}
    service.registry.promote("base@4")
    service.step(3)
    assert service.newest().candidate == "base@4"


def test_a_service_of_a_pinned_version_does_not_follow_the_alias(service: Service) -> None:
    service.registry.promote("base@3")
    service.step(4)
    assert service.weights() == {"base@1": 1.0}


def test_a_state_that_is_away_stops_neither_the_service_nor_a_roll_back(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.rollouts.start("base@2", "canary", POLICY, ME)
    service.step(3)

    def away(*_: object, **__: object) -> None:
        raise StoreFailed("the database does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(Rollouts, "open", away)
        broken.setattr(Rollouts, "change", away)
        service.step(2, given_up={"base@2": "it ended with code 1"})
        assert service.weights() == {"base@1": 1.0}
    assert service.newest().state == "canary"
    service.step(2)
    assert service.newest().state == "rolled_back"


def test_a_version_under_way_cannot_be_deleted(service: Service) -> None:
    service.rollouts.start("base@2", "canary", POLICY, ME)
    service.step(2)
    with pytest.raises(InUse):
        service.registry.delete("base@2")
    service.rollouts.command("base", "abort", ME)
    service.step(2)
    service.registry.delete("base@2")
