from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.corpus.batches import divided
from windlass.plan.local.machine import MachineFacts
from windlass.plan.memory import training_bytes
from windlass.plan.relayout import Relaid, Waits, relayout
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.errors import BadInput
from windlass.spec.job import Job
from windlass.spec.layout import Layout, check_layout
from windlass.spec.run import Run

MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=True)
CORPUS = CorpusFacts(path="c", digest="d", vocabulary=4096, train_tokens=9_000_000, validation_tokens=400_000)


def run_of(layout: dict[str, Any], batch: int = 8, **tables: Any) -> Run:
    model = {"layers": 12, "width": 256, "heads": 4}
    train = {"steps": 10, "batch_sequences": batch}
    return plan_run(
        Job.model_validate({"layout": layout, "model": model, "train": train, **tables}), CORPUS, MACHINE
    )


def laid(run: Run, workers: int, memory_bytes: int | None = None) -> Relaid:
    found = relayout(run, workers, memory_bytes=memory_bytes)
    assert isinstance(found, Relaid), found
    return found


def test_as_many_workers_as_wanted_get_the_jobs_own_layout() -> None:
    run = run_of({"dp": 2, "tp": 2})
    assert laid(run, 4).layout == run.job.layout
    assert laid(run, 4).micro_batch_sequences == run.micro_batch_sequences


def test_a_batch_that_does_not_divide_is_given_in_whole_sequences() -> None:
    found = laid(run_of({"dp": 4}), 3)
    assert (found.layout.dp, found.layout.shares, found.used) == (3, (3, 3, 2), 3)
    assert "dp=3 (shares 3:3:2)" in found.reason


def test_a_worker_that_would_not_shorten_the_step_stays_ready() -> None:
    found = laid(run_of({"dp": 4}), 7)
    assert (found.used, found.layout.shares) == (4, None)
    assert found.reason.endswith("3 workers stay ready")


def test_more_workers_add_replicas_up_to_the_batch_and_nothing_else() -> None:
    run = run_of({"dp": 1, "tp": 2}, batch=6)
    assert [str(laid(run, n).layout) for n in (4, 6, 64)] == ["dp=2,tp=2", "dp=3,tp=2", "dp=6,tp=2"]


def test_a_sharded_job_stays_sharded_with_fewer_workers_and_says_what_it_passed_by() -> None:
    found = laid(run_of({"sharded": 4}), 3)
    assert str(found.layout) == "sharded=3"
    assert found.reason.endswith("dp=3 (shares 3:3:2) would do that of 2.67 but is less like the job's")


def test_what_does_not_fit_the_memory_is_not_chosen() -> None:
    run = run_of({"sharded": 4})
    whole, half = (training_bytes(run.shape, 1, Layout(sharded=n)) for n in (1, 2))
    assert str(laid(run, 2, memory_bytes=(whole + half) // 2).layout) == "sharded=2"
    waits = relayout(run, 1, memory_bytes=(whole + half) // 2)
    assert isinstance(waits, Waits)
    assert "the smallest part takes" in waits.reason


def test_too_few_workers_wait_and_the_reason_says_for_how_many() -> None:
    waits = relayout(run_of({"dp": 4}, elastic={"min_workers": 3}), 2)
    assert waits == Waits("2 workers left, and the job needs at least 3")


def test_a_deterministic_run_moves_whole_replicas_only() -> None:
    run = run_of({"dp": 4, "tp": 2}, elastic={"deterministic": True})
    assert [str(laid(run, n).layout) for n in (2, 4, 6, 7, 8, 20)] == [
        "tp=2", "dp=2,tp=2", "dp=2,tp=2", "dp=2,tp=2", "dp=4,tp=2", "dp=4,tp=2",
    ]  # fmt: skip
    assert {laid(run, n).micro_batch_sequences for n in (2, 4, 8)} == {run.micro_batch_sequences}
    assert isinstance(relayout(run, 1), Waits)


@given(st.integers(1, 12), st.integers(1, 3), st.integers(1, 12), st.data())
def test_replicas_moved_together_hold_the_samples_of_those_they_stand_for(
    dp: int, sharded: int, workers: int, data: st.DataObject
) -> None:
    weights = data.draw(st.none() | st.lists(st.integers(1, 4), min_size=dp * sharded, max_size=dp * sharded))
    shares = None if weights is None or sharded > 1 else tuple(weights)
    batch = sum(shares) if shares else dp * sharded * 2
    run = run_of({"dp": dp, "shares": shares, "sharded": sharded}, batch, elastic={"deterministic": True})
    found = relayout(run, workers)
    if isinstance(found, Waits):
        assert workers < sharded
        return
    logical = divided(0, batch, run.job.layout.shares or (1,) * dp * sharded)
    physical = divided(0, batch, found.layout.shares or (1,) * found.layout.replicas)
    if sharded == 1:
        assert {part.start for part in physical} <= {part.start for part in logical}
    assert sum(len(part) for part in physical) == batch


layouts = st.sampled_from(
    [{"dp": 4}, {"sharded": 4}, {"dp": 2, "tp": 2}, {"pp": 2, "dp": 2}, {"pp": 3}, {}, {"cp": 2, "tp": 2},
     {"pp": 2, "schedule": "zbv", "virtual": 2}, {"pp": 2, "dp": 2, "schedule": "asynchronous"},
     {"dp": 2, "shares": [3, 1]}, {"pp": 2, "stages": [5, 7]}, {"dp": 2, "micro_batches": 2}]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    layouts,
    st.integers(1, 40).map(lambda n: 4 * n),
    st.one_of(st.integers(0, 70), st.integers(0, 10**6)),
    st.none() | st.integers(0, 2 << 30),
    st.booleans(),
    st.sampled_from(["every-step", "local"]),
)
def test_there_is_always_an_answer_and_it_can_be_run(
    layout: dict[str, Any], batch: int, workers: int, memory: int | None, deterministic: bool, policy: str
) -> None:
    try:
        run = run_of(layout, batch, elastic={"deterministic": deterministic}, sync={"policy": policy})
    except BadInput:
        return
    except ValueError:
        assert policy == "local"
        return
    found = relayout(run, workers, memory_bytes=memory)
    assert found.reason
    if isinstance(found, Relaid):
        check_layout(found.layout, run.shape, run.batch_sequences, found.micro_batch_sequences)
        assert found.used == found.layout.world <= workers
        assert policy == "every-step" or found.layout.shares in (None, run.job.layout.shares)
        if deterministic:
            kept = {"sharded", "tp", "pp", "cp"}
            assert found.layout.model_dump(include=kept) == run.job.layout.model_dump(include=kept)
