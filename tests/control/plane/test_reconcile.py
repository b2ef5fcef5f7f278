"""The loop: what it does, and that it may be killed after any of its side effects."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.plane.world import Died, Fate, Process, World, WorldBackend, group_of, in_order, submission
from windlass.cluster.backend import ClusterState, Group
from windlass.control.plane.control_plane import UNSEEN
from windlass.control.plane.job_store import JobStore, Submission, open_plane
from windlass.control.plane.leader_lease import DatabaseLease
from windlass.control.plane.leader_store import FencedLeaderStore
from windlass.control.plane.queued_job import JobEntry
from windlass.control.plane.reconcile import Reconciler
from windlass.control.scheduler.decide import decide
from windlass.control.scheduler.snapshot import JobDecision, Snapshot
from windlass.spec.errors import BadInput, InUse
from windlass.store.database import Database, sqlite_url

MAX_STEPS = 400
LIVE = ("queued", "admitted", "running", "preempting", "stopping")


MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where a commit waits for no disk, for there are thousands of them."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture
def database(folder: Path) -> Iterator[Database]:
    with fresh(folder) as opened:
        yield opened


@contextmanager
def fresh(folder: Path) -> Iterator[Database]:
    opened = open_plane(sqlite_url(folder / f"{secrets.token_hex(6)}.db"))
    try:
        yield opened
    finally:
        opened.close()


def filled(database: Database, jobs: list[Submission]) -> JobStore:
    numbers = iter(range(1000))
    records = JobStore(database, clock=lambda: 100.0 + next(numbers), uids=lambda: f"u{next(numbers):03d}")
    for job in jobs:
        records.submit(job)
    return records


def lived(
    database: Database, world: World, *, kills: int = 0, late: list[Submission] | None = None
) -> JobStore:
    """Let control planes live one after the other, the first `kills` of them killed, until all is over."""
    records = JobStore(database, clock=lambda: world.now_s)
    process, deaths = Process(world, database, in_order), 0
    for number in range(MAX_STEPS):
        if late and number == 3:
            for job in late:
                records.submit(job)
            late = None
        try:
            process.step()
        except Died:
            deaths += 1
            if deaths < kills:
                world.fate.count = 0
            process = Process(world, database, in_order, f"number {deaths}")
        world.tick()
        if not late and not world.groups and not records.list(phases=LIVE):
            return records
    raise AssertionError(f"never over: {records.list()} {world.groups}")


def outcome(records: JobStore) -> dict[str, str]:
    return {entry.key: entry.phase for entry in records.list(limit=1000)}


JOBS = [
    submission("long", work=6, cores=2.0, members=2),
    submission("bad", code=1),
    submission("short", work=1, cores=0.5),
]
LATE = [submission("urgent", work=2, cores=4.0, priority=5)]


def test_jobs_run_to_their_end_and_their_groups_are_removed(database: Database) -> None:
    filled(database, JOBS)
    world = World()
    records = lived(database, world)
    assert outcome(records) == {"default/long": "done", "default/bad": "failed", "default/short": "done"}
    assert set(world.ends.values()) == {1}


def test_a_higher_priority_takes_the_machines_and_the_other_continues_from_its_checkpoint(
    database: Database,
) -> None:
    filled(database, JOBS)
    world = World()
    records = lived(database, world, late=LATE)
    long = records.find("long", "default")
    assert (long.phase, long.preemptions) == ("done", 1)
    told = [event.what for event in records.events(long.uid)]
    assert any("is preempted" in each for each in told)
    assert "has saved and waits again" in told
    assert world.ends[long.group_key] == 1


@pytest.mark.parametrize("kills", [1, 2])
def test_a_kill_after_any_side_effect_changes_no_end(folder: Path, kills: int) -> None:
    """The property that the whole room is built for."""

    def story(after: int) -> tuple[dict[str, str], dict[str, int], int]:
        with fresh(folder) as database:
            filled(database, JOBS)
            world = World(fate=Fate(after))
            records = lived(database, world, kills=kills, late=LATE)
            ends = {key.rpartition("-")[0]: count for key, count in world.ends.items()}
            return outcome(records), ends, world.fate.count

    undisturbed, ends, effects = story(0)
    assert effects > 15
    assert set(ends.values()) == {1}
    for after in range(1, effects + 1):
        assert story(after)[:2] == (undisturbed, ends), f"killed after side effect {after}"


MIXES = st.lists(
    st.builds(
        lambda work, cores, members, priority, code: (work, cores, members, priority, code),
        work=st.integers(1, 4),
        cores=st.sampled_from([0.5, 1.0, 2.0]),
        members=st.integers(1, 2),
        priority=st.integers(0, 2),
        code=st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25)
@given(mix=MIXES, after=st.integers(1, 60), kills=st.integers(1, 3))
def test_whatever_the_mix_every_job_is_done_once(
    folder: Path,
    mix: list[tuple[int, float, int, int, int]],
    after: int,
    kills: int,
) -> None:
    jobs = [
        submission(f"j{i}", work=w, cores=c, members=m, priority=p, code=code)
        for i, (w, c, m, p, code) in enumerate(mix)
    ]
    world = World(fate=Fate(after))
    with fresh(folder) as database:
        filled(database, jobs[:3])
        records = lived(database, world, kills=kills, late=jobs[3:])
        expected = {f"default/j{i}": "failed" if job[4] else "done" for i, job in enumerate(mix)}
        assert outcome(records) == expected
    assert list(world.ends.values()) == [1] * len(mix)


def test_a_group_that_is_gone_without_a_word_is_launched_again(database: Database) -> None:
    records = filled(database, [submission("a", work=5)])
    world = World()
    process = Process(world, database, in_order)
    for _ in range(3):
        process.step()
        world.tick()
    entry = records.find("a", "default")
    assert entry.phase == "running"
    world.lose(entry.group_key)
    process.step()
    process.step()
    entry = records.find("a", "default")
    assert (entry.phase, entry.attempts) == ("admitted", 2)
    assert entry.group_key in world.groups
    assert lived(database, world).find("a", "default").phase == "done"


def test_a_cluster_that_does_not_answer_changes_nothing(database: Database) -> None:
    records = filled(database, [submission("a", work=5), submission("b", cores=4.0)])
    world = World()
    process = Process(world, database, in_order)
    for _ in range(3):
        process.step()
        world.tick()
    before = [(e.phase, e.version) for e in records.list()]
    world.away = True
    for _ in range(3):
        step = process.step()
        assert step is not None
        assert step.trouble == "the cluster does not answer"
    assert [(e.phase, e.version) for e in records.list()] == before


def test_a_queued_job_that_is_stopped_never_runs_and_a_running_one_ends(database: Database) -> None:
    records = filled(database, [submission("a", work=50, cores=4.0), submission("b", work=1, cores=4.0)])
    world = World()
    process = Process(world, database, in_order)
    for _ in range(3):
        process.step()
        world.tick()
    for name in "ba":
        records.stop(records.find(name, "default").uid, "owner")
    assert outcome(lived(database, world)) == {"default/a": "stopped", "default/b": "stopped"}
    assert world.ends == {}


def test_a_leader_that_was_frozen_writes_and_launches_nothing(database: Database) -> None:
    records = filled(database, [submission("a", work=9)])
    world = World()
    frozen, other = Process(world, database, in_order, "old"), Process(world, database, in_order, "new")
    frozen.step()
    world.tick()
    frozen.step()
    while other.lease.epoch is None:
        world.tick()
        other.step()
    assert other.lease.epoch == 2
    before = (dict(world.groups), [e.version for e in records.list()])
    records.submit(submission("b", work=9))
    assert frozen.reconciler is not None
    with pytest.raises(InUse, match="epoch 1 is over"):
        frozen.reconciler.step()  # it wakes in the midst of its loop
    assert dict(world.groups) == before[0]
    assert frozen.step() is None
    assert frozen.lease.epoch is None


def test_groups_of_others_are_left_alone_and_strays_of_ours_are_stopped(database: Database) -> None:
    filled(database, [])
    world = World()
    process = Process(world, database, in_order)
    backend = WorldBackend(world)
    backend.launch(Group("theirs", "made.up", ("9",), 1))
    backend.launch(Group("ours", "made.up", ("9",), 1, environment={"WINDLASS_PLANE": "plane"}))
    process.step()
    assert not world.groups["default/theirs"].stopping
    assert world.groups["default/ours"].stopping


def test_what_no_backend_can_run_fails_with_the_reason(database: Database) -> None:
    records = filled(database, [submission("a")])
    world = World()
    process = Process(world, database, in_order)

    def refuse(entry: JobEntry) -> Group:
        raise BadInput(f"{entry.name} cannot be")

    process.step()
    assert process.reconciler is not None
    process.reconciler._group_of = refuse
    world.groups.clear()
    for _ in range(3):
        process.step()
    assert (records.find("a", "default").phase, records.find("a", "default").reason) == (
        "failed",
        "a cannot be",
    )


def test_an_elastic_job_continues_with_as_many_members_as_are_decided(database: Database) -> None:
    records = filled(database, [submission("a", work=9, members=3)])
    world = World()
    wanted = [1]

    def resized(view: Snapshot) -> list[JobDecision]:
        changed = [p for p in view.placed if p.members != wanted[0]]
        told = [JobDecision(ask.key, "admit", "fewer will do", wanted[0]) for ask in view.waiting]
        return told + [JobDecision(p.job.key, "resize", "there is more room", wanted[0]) for p in changed]

    process = Process(world, database, resized)
    for members in (1, 3, 2):
        wanted[0] = members
        for _ in range(2):
            process.step()
            world.tick()
        (standing,) = world.groups.values()
        assert (standing.group.count, len(standing.members)) == (members, members)
    entry = records.find("a", "default")
    assert (entry.phase, entry.members, entry.attempts) == ("running", 2, 1)
    assert [e.what for e in records.events(entry.uid)][-2:] == [
        "continues with 3 members: there is more room",
        "continues with 2 members: there is more room",
    ]


def test_a_cluster_that_shows_no_machines_is_taken_to_have_room(database: Database) -> None:
    records = filled(database, [submission("a", members=3, cores=64.0)])
    world = World()

    class Veiled(WorldBackend):
        def survey(self, tenant: str | None = None) -> ClusterState:
            return ClusterState((), super().survey(tenant).groups)

    lease = DatabaseLease(database, "one")
    lease.step(0.0)
    ledger = FencedLeaderStore(records, lambda: lease.epoch)
    for unseen, phase in (((), "queued"), (UNSEEN, "admitted")):
        clock = lambda: world.now_s  # noqa: E731
        Reconciler(ledger, Veiled(world), group_of, decide, clock=clock, unseen=unseen).step()
        assert records.find("a", "default").phase == phase


def test_a_step_in_which_nothing_changed_writes_nothing(database: Database) -> None:
    filled(database, [submission(f"j{i}", work=100) for i in range(8)])
    world = World(fate=Fate())
    process = Process(world, database, in_order)
    for _ in range(6):
        process.step()
        world.tick()
    reconciler = process.reconciler
    assert reconciler is not None
    before = world.fate.count
    reconciler.step()
    assert world.fate.count == before
