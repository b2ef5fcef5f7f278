"""Who computes what next; no process, no clock."""

from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.sync import Sync
from windlass.train.server.work_queue import BatchPart, WorkerTask, WorkQueue


def work_queue(mode: str, *, limit: int = 100, workers: int = 2, parts: int = 2, **more: int) -> WorkQueue:
    sync = Sync.model_validate({"policy": "server", "mode": mode, **more})
    made = WorkQueue(sync, "life")
    made.limit, made.parts = limit, parts
    for worker in range(workers):
        made.join(worker)
    return made


def end(made: WorkQueue, worker: int, task: WorkerTask) -> None:
    """Let a worker finish, and commit what it did."""
    done = made.finish(worker, task.id, {})
    assert done is not None
    made.settle(done)


def ask(made: WorkQueue, worker: int) -> WorkerTask:
    task = made.next_task(worker)
    assert task is not None
    return task


def test_workers_divide_a_batch_and_wait_for_its_commit() -> None:
    made = work_queue("synchronous")
    first, second = ask(made, 0), ask(made, 1)
    assert [(t.batch, t.part, t.parts) for t in (first, second)] == [(0, 0, 2), (0, 1, 2)]
    assert made.next_task(0) is None
    assert made.finish(1, second.id, {"loss": 2}) is None
    done = made.finish(0, first.id, {"loss": 1})
    assert done is not None
    assert (done.tasks, done.facts) == ((first.id, second.id), ({"loss": 1}, {"loss": 2}))
    assert made.next_task(0) is None, "the weights have not changed yet"
    made.committed = 1
    assert ask(made, 0).batch == 1


def test_what_a_lost_worker_had_is_given_to_another_under_a_new_number() -> None:
    made = work_queue("synchronous")
    lost, _ = ask(made, 0), ask(made, 1)
    made.leave(0)
    again = ask(made, 1)
    assert (again.batch, again.part) == (lost.batch, lost.part)
    assert again.id != lost.id
    assert made.dropped == [lost.id]
    assert made.finish(0, lost.id, {}) is None, "its worker comes too late"


def test_a_finished_part_of_a_lost_worker_counts() -> None:
    made = work_queue("synchronous")
    first, second = ask(made, 0), ask(made, 1)
    made.finish(0, first.id, {})
    made.leave(0)
    assert made.dropped == []
    assert made.finish(1, second.id, {}) is not None


def test_no_worker_is_further_ahead_than_the_bound() -> None:
    made = work_queue("bounded", staleness=2, parts=1)
    ask(made, 1)  # which it never finishes
    for batch in (1, 2, 3):
        task = ask(made, 0)
        assert task.batch == batch
        end(made, 0, task)
    assert made.next_task(0) is None, "it has ended three more than the slowest"
    made.leave(1)
    assert ask(made, 0).batch == 0, "without the slowest it goes on, with what that one had first"


def test_who_comes_late_is_as_far_as_the_slowest() -> None:
    made = work_queue("bounded", staleness=0, parts=1, workers=1)
    for _ in range(5):
        end(made, 0, ask(made, 0))
    made.join(1)
    end(made, 1, ask(made, 1))
    assert made.next_task(1) is None
    end(made, 0, ask(made, 0))
    assert made.next_task(1) is not None


def test_no_worker_waits_in_asynchronous_mode_and_every_part_is_an_update() -> None:
    made = work_queue("asynchronous", parts=2)
    tasks = [ask(made, worker) for worker in range(3)]
    assert [(t.batch, t.part) for t in tasks] == [(0, 0), (0, 1), (1, 0)]
    done = made.finish(2, tasks[2].id, {"loss": 1})
    assert done is not None
    assert (done.piece, done.tasks, done.facts) == (BatchPart(1, 0, 2), (tasks[2].id,), ({"loss": 1},))
    assert not made.quiet


def test_nothing_beyond_a_sync_point_is_handed_out() -> None:
    made = work_queue("asynchronous", limit=1, parts=1)
    task = ask(made, 0)
    assert made.next_task(1) is None
    made.finish(0, task.id, {})
    assert made.quiet
    made.limit = 2
    assert ask(made, 1).batch == 1


def test_a_successor_hands_out_what_was_begun_and_not_committed() -> None:
    sync = Sync.model_validate({"policy": "server", "mode": "asynchronous"})
    made = WorkQueue(sync, "second", committed=[BatchPart(4), BatchPart(6), BatchPart(7, 1, 3)], first=4)
    made.limit = 100
    tasks = [ask(made, 0) for _ in range(4)]
    assert [(t.batch, t.part, t.parts) for t in tasks] == [(7, 0, 3), (7, 2, 3), (5, 0, 1), (8, 0, 1)]


def test_late_work_is_known_by_when_it_was_handed_out() -> None:
    made = work_queue("asynchronous")
    made.next_task(0, now_s=10.0)
    made.next_task(1, now_s=20.0)
    assert made.late(15.0) == [0]


MODES = ("synchronous", "bounded", "asynchronous")
STORY = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["ask", "finish", "leave"])), max_size=200)


class Play:
    """Workers that do what a story says; every update is committed as soon as it can be."""

    def __init__(self, mode: str, *, parts: int = 3, **more: int) -> None:
        self.made = work_queue(mode, limit=8, workers=4, parts=parts, **more)
        self.held: dict[int, tuple[WorkerTask, int]] = {}
        self.commits: list[BatchPart] = []
        self.stale: list[int] = []

    def act(self, worker: int, action: str) -> None:
        if action == "leave":
            self.made.leave(worker)
            self.held.pop(worker, None)
        elif action == "ask" and worker not in self.held:
            task = self.made.next_task(worker)
            if task is not None:
                self.held[worker] = task, len(self.commits)
        elif action == "finish" and worker in self.held:
            task, pulled = self.held.pop(worker)
            done = self.made.finish(worker, task.id, {})
            if done is not None:
                self.stale.append(len(self.commits) - pulled)
                self.commits.append(done.piece)
                self.made.settle(done)
                self.made.committed = sum(piece.parts == 1 for piece in self.commits)

    def end(self) -> None:
        """Whoever is left ends it."""
        for _ in range(100):
            for worker in range(4):
                self.act(worker, "ask")
                self.act(worker, "finish")


@given(st.sampled_from(MODES), STORY)
def test_everything_is_committed_once_when_workers_join_and_leave(
    mode: str, story: list[tuple[int, str]]
) -> None:
    play = Play(mode)
    for worker, action in story:
        play.act(worker, action)
    play.end()
    pieces = (
        [BatchPart(b) for b in range(8)]
        if mode == "synchronous"
        else [BatchPart(b, p, 3) for b in range(8) for p in range(3)]
    )
    assert sorted(play.commits) == pieces
    assert play.made.quiet


@given(st.integers(0, 3), STORY)
def test_with_a_bound_no_push_is_later_than_it_says(staleness: int, story: list[tuple[int, str]]) -> None:
    play = Play("bounded", staleness=staleness)
    for worker, action in story:
        play.act(worker, "finish" if action == "leave" else action)
    play.end()
    assert max(play.stale) <= 3 * (2 * staleness + 1), "of three others, each so many"
