"""Versions go from a home to its sites, whole, and stay there."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from windlass.backup.prune import prune
from windlass.backup.repository import open_repository
from windlass.registry.versions import Registry
from windlass.sites.replication.artifact_store import ArtifactStore, open_depot
from windlass.sites.replication.lag import copies
from windlass.sites.replication.puller import Puller
from windlass.sites.replication.watch import ReplicationWatch
from windlass.spec.backup import Keep
from windlass.spec.errors import Damaged, InUse, NotFound
from windlass.store.manifest import verify
from windlass.store.store_dir import StoreDir

PIECE_BYTES = 1000
Net = Any
"""The class of that name in conftest.py."""
NewNet = Callable[..., Net]


def depot_of(net: Net) -> ArtifactStore:
    return open_depot(net.rule.depot)


def test_a_new_site_gets_every_version_and_the_aliases_of_home(net: Net) -> None:
    assert net.publish().published == ["poems@1", "poems@2"]
    assert sorted(net.bring().brought) == ["poems@1", "poems@2"]
    assert net.has("east") == net.has("home")
    assert Registry(net.folder / "east").aliases("poems") == {"prod": 1}
    for version in Registry(net.folder / "east").versions("poems"):
        verify(StoreDir(version.path))
        here = (net.home / "models/poems" / str(version.number) / "manifest.json").read_bytes()
        assert (version.path / "manifest.json").read_bytes() == here


def test_what_is_there_is_not_moved_again(net: Net) -> None:
    net.publish()
    net.bring()
    assert net.publish().sent_bytes == 0
    assert net.bring().fetched_bytes == 0
    net.register()
    assert 3400 < net.publish().sent_bytes < 5000
    assert 3400 < net.bring().fetched_bytes < 5000


def test_aliases_of_a_site_that_has_some_are_its_own(net: Net) -> None:
    net.publish()
    net.bring()
    Registry(net.home).promote("poems@2")
    net.publish()
    net.bring()
    assert Registry(net.folder / "east").aliases("poems") == {"prod": 1}
    assert depot_of(net).aliases()["poems"] == {"prod": 2, "previous": 1}


def test_models_without_an_alias_stay_at_home_unless_they_are_named(tmp_path: Path, new_net: NewNet) -> None:
    net = new_net(tmp_path)
    net.register("draft")
    assert net.publish().published == []
    named = new_net(tmp_path, models=("draft",))
    assert named.publish().published == ["draft@1"]


def test_a_copy_that_was_cut_off_continues_from_its_last_whole_piece(net: Net) -> None:
    net.publish()
    part = net.folder / "east/models/poems/.coming/1/model.safetensors.part"
    part.parent.mkdir(parents=True)
    whole = (net.home / "models/poems/1/model.safetensors").read_bytes()
    part.write_bytes(whole[: 2 * PIECE_BYTES + 300])  # two pieces, and some of the third
    done = net.bring()
    assert done.fetched_bytes == 2 * (3500 + 2) - 2 * PIECE_BYTES
    assert net.has("east") == net.has("home")
    assert not list((net.folder / "east").rglob("*.part"))


def test_garbage_that_a_crash_left_is_not_believed(net: Net) -> None:
    net.publish()
    folder = net.folder / "east/models/poems/.coming/1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors.part").write_bytes(b"x" * 2500)
    (folder / "config.json").write_bytes(b"[]")
    net.bring()
    assert net.has("east") == net.has("home")
    assert (net.folder / "east/models/poems/1/config.json").read_bytes() == b"{}"


def test_bytes_that_rotted_in_the_depot_never_become_a_version(net: Net) -> None:
    net.publish()
    stored = depot_of(net).version(("poems", 1))
    assert stored is not None
    rotten = max(stored.files, key=lambda file: file.bytes).chunks[0]
    path = Path(net.rule.depot) / "chunks" / rotten[:2] / rotten
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    done = net.bring()
    assert done.missing == ["poems@1"]
    assert "the bytes differ" in done.refused[0]
    assert set(net.has("east")) == {"poems@2"}
    assert depot_of(net).reports()["east"].trouble == done.refused[0]


def test_a_damaged_version_of_the_home_is_not_published(net: Net) -> None:
    (net.home / "models/poems/2/config.json").write_bytes(b"[]")
    done = net.publish()
    assert done.published == ["poems@1"]
    assert "the bytes differ" in done.refused[0]


def test_a_record_that_leads_out_of_its_folder_is_refused(net: Net) -> None:
    net.publish()
    file = Path(net.rule.depot) / "versions/poems/1"
    record = json.loads(file.read_bytes())
    file.write_bytes(
        json.dumps({**record, "version": record["version"].replace("config", "../../x")}).encode()
    )
    with pytest.raises(Damaged, match="the bytes differ"):
        net.bring()


def test_what_is_deleted_at_home_leaves_depot_and_sites_but_not_while_it_is_served(net: Net) -> None:
    net.register()
    net.publish()
    net.bring()
    east = Registry(net.folder / "east")
    Registry(net.home).delete("poems@2")
    Registry(net.home).delete("poems@3")
    with east.holding(east.find("poems@2")):
        assert net.publish().forgotten == ["poems@2", "poems@3"]
        assert net.bring().removed == ["poems@3"]
        assert set(net.has("east")) == {"poems@1", "poems@2"}
    assert net.bring().removed == ["poems@2"]
    assert net.has("east") == net.has("home")
    stored = depot_of(net).version(("poems", 1))
    assert stored is not None
    assert set(depot_of(net).repository.chunks()) == stored.chunks


def test_a_home_that_was_lost_takes_nothing_with_it(net: Net, new_net: NewNet) -> None:
    net.publish()
    net.bring()
    empty = new_net(net.folder)
    empty.home = net.folder / "another"
    assert empty.publish().forgotten == []
    net.bring()
    assert set(net.has("east")) == {"poems@1", "poems@2"}


def test_a_number_that_means_two_models_is_said_and_neither_is_changed(net: Net, new_net: NewNet) -> None:
    east = new_net(net.folder)
    east.home = net.folder / "east"
    east.register()
    before = net.has("east")
    net.publish()
    assert "another model" in net.bring().refused[0]
    assert net.has("east")["poems@1"] == before["poems@1"]
    Registry(east.home).promote("poems@1")
    assert "another home" in east.publish().refused[0]
    found = copies(["east"], depot_of(net).versions(), depot_of(net).reports(), 0.0)[0]
    assert found.different == ("poems@1",)


def test_only_the_newest_versions_stay_where_that_is_requested(tmp_path: Path, new_net: NewNet) -> None:
    net = new_net(tmp_path, keep=2)
    net.register(promote=True)
    for _ in range(4):
        net.register()
        net.publish()
        net.bring()
    assert set(net.has("east")) == {"poems@1", "poems@4", "poems@5"}  # @prod stays, however old


@pytest.mark.parametrize("side", ["publish", "bring"])
def test_no_more_bytes_a_second_than_allowed(
    side: str, net: Net, new_net: NewNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    slow = new_net(net.folder, rate=1000)
    if side == "bring":
        net.publish()
    monkeypatch.setattr("windlass.backup.uploader.time.sleep", waits.append)
    getattr(slow, side)()
    assert 5.5 < max(waits) < 7.5  # 7 KB in pieces of at most 1 KB; the last one waits for all before it


def test_two_replicators_at_once_do_no_harm(net: Net) -> None:
    open_depot(net.rule.depot, create=True)
    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(action) for action in (net.publish, net.publish, net.bring, net.bring) * 2]
        for future in work:
            with suppress(InUse):  # another is at it
                future.result()
    net.publish()
    net.bring()
    assert net.has("east") == net.has("home")


def test_a_depot_is_no_backup(net: Net) -> None:
    net.publish()
    with pytest.raises(NotFound, match="no backup"):
        prune(open_repository(net.rule.depot), Keep())


def test_how_far_a_site_is_behind_is_known_from_its_last_word(net: Net) -> None:
    net.publish()
    net.bring("east")
    net.register()
    net.publish()
    depot = depot_of(net)
    published = depot.versions()[("poems", 3)].published_s
    east, west = copies(["east", "west"], depot.versions(), depot.reports(), published + 60)
    assert (east.has, east.missing, east.behind_s) == (("poems@1", "poems@2"), ("poems@3",), 60.0)
    assert east.missing_bytes == 3502
    assert (west.has, len(west.missing), west.report_age_s) == ((), 3, None)
    net.bring("east")
    assert copies(["east"], depot.versions(), depot.reports(), published)[0].behind_s is None


@pytest.mark.slow
def test_a_depot_in_a_real_object_store(tmp_path: Path, new_net: NewNet, s3_url: str) -> None:
    net = new_net(tmp_path, f"{s3_url}/{tmp_path.name}")
    net.register(promote=True)
    net.register()
    net.publish()
    net.bring()
    Registry(net.home).delete("poems@2")
    net.publish()
    net.bring()
    assert net.has("east") == net.has("home") != {}


def test_a_site_that_is_not_there_or_not_reachable_only_waits(net: Net) -> None:
    with pytest.raises(NotFound, match="no depot yet"):
        net.bring()
    net.publish()
    assert Puller(net.folder / "east", depot_of(net), "east", net.rule).step().missing == []


def test_a_store_that_is_away_is_reported_of_once_and_requested_again(net: Net) -> None:
    events: list[dict[str, Any]] = []
    watch = ReplicationWatch(
        net.rule,
        lambda depot: Puller(net.folder / "east", depot, "east", net.rule),
        events.append,
        threading.Event(),
        create=False,
    )
    for _ in range(3):
        assert watch.step() > 0
    net.publish()
    assert watch.step() == net.rule.every
    assert watch.step() == net.rule.every
    assert [event["event"] for event in events] == ["failed", "replicated"]
    assert net.has("east") == net.has()
