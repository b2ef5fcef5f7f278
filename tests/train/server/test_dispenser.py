"""Who computes what next; no process, no clock."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.sync import Sync
from windlass.train.server.dispenser import Dispenser, Task


def dispenser(mode: str, *, limit: int = 100, workers: int = 2, parts: int = 2, **more: int) -> Dispenser:
    sync = Sync.model_validate({"policy": "server", "mode": mode, **more})
    made = Dispenser(sync, "life")
    made.limit, made.parts = limit, parts
    for worker in range(workers):
        made.join(worker)
    return made


def ask(made: Dispenser, worker: int) -> Task:
    task = made.ask(worker)
    assert task is not None
    return task


def test_workers_divide_a_batch_and_wait_for_its_commit() -> None:
    made = dispenser("synchronous")
    first, second = ask(made, 0), ask(made, 1)
    assert [(t.batch, t.part, t.parts) for t in (first, second)] == [(0, 0, 2), (0, 1, 2)]
    assert made.ask(0) is None
    assert made.finish(1, second.id, {"loss": 2}) is None
    done = made.finish(0, first.id, {"loss": 1})
    assert done is not None
    assert (done.tasks, done.facts) == ((first.id, second.id), ({"loss": 1}, {"loss": 2}))
    assert made.ask(0) is None, "the weights have not changed yet"
    made.committed = 1
    assert ask(made, 0).batch == 1


def test_what_a_lost_worker_had_is_given_to_another_under_a_new_number() -> None:
    made = dispenser("synchronous")
    lost, _ = ask(made, 0), ask(made, 1)
    made.leave(0)
    again = ask(made, 1)
    assert (again.batch, again.part) == (lost.batch, lost.part)
    assert again.id != lost.id
    assert made.dropped == [lost.id]
    assert made.finish(0, lost.id, {}) is None, "its worker comes too late"


def test_a_finished_part_of_a_lost_worker_counts() -> None:
    made = dispenser("synchronous")
    first, second = ask(made, 0), ask(made, 1)
    made.finish(0, first.id, {})
    made.leave(0)
    assert made.dropped == []
    assert made.finish(1, second.id, {}) is not None


def test_no_worker_is_further_ahead_than_the_bound() -> None:
    made = dispenser("bounded", staleness=2, parts=1)
    ask(made, 1)  # which it never finishes
    for batch in (1, 2):
        task = ask(made, 0)
        assert task.batch == batch
        made.finish(0, task.id, {})
        made.committed = batch
    assert made.ask(0) is None
    made.leave(1)
    assert ask(made, 0).batch == 0, "without the slowest it goes on, with what that one had first"


def test_a_bound_of_none_is_synchronous() -> None:
    made = dispenser("bounded", staleness=0, parts=1)
    made.finish(0, ask(made, 0).id, {})
    assert made.ask(1) is None, "the first batch is not committed yet"
    made.committed = 1
    assert ask(made, 1).batch == 1


def test_nobody_waits_in_asynchronous_mode() -> None:
    made = dispenser("asynchronous", parts=2)
    assert [(t.batch, t.part) for t in (ask(made, 0), ask(made, 1), ask(made, 2))] == [(0, 0), (0, 1), (1, 0)]


def test_nothing_beyond_a_border_is_handed_out() -> None:
    made = dispenser("asynchronous", limit=1, parts=1)
    task = ask(made, 0)
    assert made.ask(1) is None
    made.finish(0, task.id, {})
    assert made.quiet
    made.limit = 2
    assert ask(made, 1).batch == 1


def test_a_successor_hands_out_what_was_begun_and_not_committed() -> None:
    sync = Sync.model_validate({"policy": "server", "mode": "asynchronous"})
    made = Dispenser(sync, "second", committed=[4, 6, 7], first=4)
    made.limit = 100
    assert [ask(made, 0).batch for _ in range(3)] == [5, 8, 9]


def test_late_work_is_known_by_when_it_was_handed_out() -> None:
    made = dispenser("asynchronous")
    made.ask(0, now_s=10.0)
    made.ask(1, now_s=20.0)
    assert made.late(15.0) == [0]


@given(
    st.sampled_from(["synchronous", "bounded", "asynchronous"]),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["ask", "finish", "leave"])), max_size=200),
)
def test_every_batch_is_committed_once_whoever_comes_and_goes(
    mode: str, story: list[tuple[int, str]]
) -> None:
    made = dispenser(mode, limit=8, workers=4, parts=3)
    held: dict[int, Task] = {}
    commits: list[int] = []

    def act(worker: int, deed: str) -> None:
        if deed == "leave":
            made.leave(worker)
            held.pop(worker, None)
        elif deed == "ask" and worker not in held:
            task = made.ask(worker)
            if task is not None:
                held[worker] = task
        elif deed == "finish" and worker in held:
            done = made.finish(worker, held.pop(worker).id, {})
            if done is not None:
                commits.append(done.batch)
                made.committed = len(commits)

    for worker, deed in story:
        act(worker, deed)
    for _ in range(100):  # whoever is left ends it
        for worker in range(4):
            act(worker, "ask")
            act(worker, "finish")
    assert sorted(commits) == list(range(8))
    assert made.quiet
