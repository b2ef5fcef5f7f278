"""The stages of a sweep, without Beam."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.sweep.report import as_html, as_text
from windlass.plan.sweep.stages import (
    Bucket,
    SweepOptions,
    added,
    bucket_of,
    check_options,
    combinations,
    keyed,
    plan_bucket,
)
from windlass.spec.errors import AskedWrongly, BadInput
from windlass.spec.job import Job, ModelSpec, Train

JOB = Job(
    name="job", model=ModelSpec(parameters=1_000_000_000, context=2048), train=Train(tokens=10_000_000_000)
)
counts = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9999)))


@given(st.integers(1, 1 << 20))
def test_a_bucket_holds_its_documents_and_is_less_than_twice_as_long_as_they_are(tokens: int) -> None:
    assert tokens <= bucket_of(tokens) < max(2 * tokens, 17)


@given(counts, counts)
def test_counts_may_be_added_in_any_parts(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    assert added([added(some), added(others)]) == added([*others, *some])


def test_documents_without_tokens_are_in_no_bucket() -> None:
    assert list(keyed([0, 5, 0])) == [(16, (1, 5))]


def test_every_combination_of_the_options_is_planned() -> None:
    options = SweepOptions(contexts=(512, 1024), models=(10**9,), fleets=("8xA100-SXM4-80GB", "8xH100-SXM5"))
    found = combinations(options, "8xH100-SXM5")
    assert len(found) == 4
    assert {(one.context, one.machines) for one in found} == {
        (context, fleet) for context in (512, 1024) for fleet in ("8xA100-SXM4-80GB", "8xH100-SXM5")
    }


def test_a_sweep_without_machines_is_refused() -> None:
    with pytest.raises(BadInput, match="no machines given"):
        combinations(SweepOptions(), None)


def test_an_unknown_device_is_refused_before_any_text_is_read() -> None:
    with pytest.raises(AskedWrongly, match="X9000"):
        check_options(combinations(SweepOptions(), "8xX9000"), JOB)


def test_short_documents_are_planned_in_short_sequences_and_long_ones_are_cut() -> None:
    option = combinations(SweepOptions(), "8xH100-SXM5")[0]
    rows = {n: plan_bucket(Bucket(n, 10, 5000), option, JOB, 10_000) for n in (256, 65536)}
    assert {n: (tag, row["sequence"]) for n, (tag, row) in rows.items()} == {
        256: ("result", 256),
        65536: ("result", 2048),
    }


def test_tokens_of_a_batch_do_not_depend_on_the_bucket() -> None:
    option = combinations(SweepOptions(), "8xH100-SXM5")[0]
    rows = [plan_bucket(Bucket(n, 10, 5000), option, JOB, 10_000)[1] for n in (256, 2048)]
    assert rows[0]["batch"] * 256 == rows[1]["batch"] * 2048


def test_what_cannot_fit_goes_to_the_other_output_with_the_reason() -> None:
    option = combinations(SweepOptions(models=(70_000_000_000,)), "1xL4")[0]
    tag, row = plan_bucket(Bucket(256, 10, 5000), option, JOB, 10_000)
    assert tag == "no_solution"
    assert "memory: the smallest layout needs" in row["reason"]


def test_a_job_that_does_not_say_how_much_sees_the_corpus_once() -> None:
    option = combinations(SweepOptions(), "8xH100-SXM5")[0]
    job = JOB.model_copy(update={"train": Train()})
    _, row = plan_bucket(Bucket(2048, 10, 10**9), option, job, 10**9)
    assert row["steps"] * row["batch"] * row["sequence"] == pytest.approx(10**9, rel=0.01)


def test_a_report_names_every_plan_and_is_safe_to_open() -> None:
    option = combinations(SweepOptions(), "8xH100-SXM5")[0]
    _, row = plan_bucket(Bucket(256, 10, 5000), option, JOB, 10_000)
    buckets = [{"bucket": 256, "documents": 10, "tokens": 5000}]
    rows = {"result": [row], "no_solution": [], "buckets": buckets}
    assert "8xH100-SXM5" in as_text(rows)
    page = as_html(rows, "<script>")
    assert "<script>" not in page
    assert "http" not in page
