"""Predictions are judged on rows that they were not fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from windlass.lab.planner.fit_time import fit, sampled
from windlass.lab.planner.published import (
    COVERED,
    find_rows,
    folds,
    judge,
    mape,
    predict,
    rows_to_fit,
    with_interval,
)
from windlass.lab.planner.regret import MIN_LAYOUTS, cells
from windlass.lab.planner.rows import PublishedRow, read_rows
from windlass.lab.planner.validation_report import verdict
from windlass.plan.cost.fitted_constants import FittedConstants, published
from windlass.plan.cost.step_time import step_time

ROWS = Path(__file__).resolve().parents[4] / "shared" / "planner" / "training_rows.csv"


@pytest.fixture(scope="module")
def rows() -> list[PublishedRow]:
    if not ROWS.is_file():
        pytest.skip("needs training_rows.csv of the shared data, which is not on this machine")
    return read_rows(ROWS)


@pytest.fixture(scope="module")
def measured(rows: list[PublishedRow]) -> list[PublishedRow]:
    return [row for row in rows if row.set == "korthikanti_t5"]


def of_a_slower_world(rows: list[PublishedRow], factor: float) -> list[PublishedRow]:
    """Rows as they would be if every prediction were short by a factor."""
    return [
        replace(row, seconds=factor * step_time(row.case).seconds) for row in rows if row.case is not None
    ]


def test_a_set_is_judged_with_constants_that_do_not_know_it(measured: list[PublishedRow]) -> None:
    other = [replace(row, set="other") for row in measured]
    slower = [replace(row, seconds=(row.seconds or 0) * 1.3) for row in measured]
    known = folds([*other, *measured], ["korthikanti_t5"])["korthikanti_t5"]
    changed = folds([*other, *slower], ["korthikanti_t5"])["korthikanti_t5"]
    assert known == changed


def test_the_shared_rows_are_found_from_anywhere(
    rows: list[PublishedRow], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_rows() == ROWS


def test_a_set_that_does_not_ship_is_never_fitted_to(rows: list[PublishedRow]) -> None:
    unseen = [replace(row, set="unseen") for row in rows if row.set == "torchtitan"]
    known = [row for row in rows if row.set in published().sets]
    assert rows_to_fit([*rows, *unseen], None) == known
    assert rows_to_fit(unseen, None) == []
    assert {row.set for row in rows_to_fit(unseen, ROWS)} == {row.set for row in rows}


def test_a_few_sets_are_not_enough_to_fit_without_one_of_them(rows: list[PublishedRow]) -> None:
    few = [row for row in rows if row.set in ("mosaic_mpt", "torchtitan", "bloom_prequel")]
    assert rows_to_fit(few, None) == []


def test_a_fit_moves_towards_what_was_measured(measured: list[PublishedRow]) -> None:
    slow = of_a_slower_world(measured, 1.2)
    before = [predict(row, published()).error for row in slow]
    fitted = fit(slow)
    after = [predict(row, fitted).error for row in slow]
    assert np.mean(np.abs(after)) < 0.5 * np.mean(np.abs(before))


def test_a_stalled_run_pulls_at_nothing(measured: list[PublishedRow]) -> None:
    steady = of_a_slower_world(measured, 1.0)
    stalled = [*steady[1:], replace(steady[0], seconds=30 * (steady[0].seconds or 0))]
    with_it, without_it = fit(stalled), fit(steady[1:])
    case = steady[3].case
    assert case is not None
    assert step_time(case, with_it).seconds == pytest.approx(step_time(case, without_it).seconds, rel=0.01)


def test_intervals_hold_as_many_errors_as_they_say() -> None:
    errors = np.random.default_rng(0).normal(0, 0.5, 2000)
    known = with_interval(FittedConstants(), [errors[:1000], errors[1000:]])
    held = np.mean((np.exp(errors) >= known.low) & (np.exp(errors) <= known.high))
    assert held == pytest.approx(COVERED, abs=0.01)


def test_a_long_set_weighs_no_more_in_an_interval_than_a_short_one() -> None:
    sure, unsure = np.zeros(1000), np.array([-1.0, 1.0] * 5)
    assert with_interval(FittedConstants(), [sure, unsure]).high == pytest.approx(np.e, rel=0.01)


def test_no_regret_where_the_fastest_is_predicted_to_be_fastest(measured: list[PublishedRow]) -> None:
    case = measured[0].case
    assert case is not None
    layouts = [replace(case, tp=tp, dp=8 // tp, micro_batch=1, global_batch=8) for tp in (1, 2, 4, 8)]
    layouts.append(replace(layouts[0], recompute="none"))
    assert len(layouts) == MIN_LAYOUTS
    made = [replace(measured[0], case=one, seconds=step_time(one).seconds) for one in layouts]
    found = cells([predict(row, published()) for row in made], lambda case: True)
    assert [cell.regret for cell in found] == [0]
    worse = cells([predict(row, published()) for row in made], lambda case: case.tp == 1)
    assert worse[0].regret >= 0
    assert worse[0].best == found[0].best


def test_rows_that_are_not_used_say_why(rows: list[PublishedRow]) -> None:
    source = judge([row for row in rows if row.set == "gpu_hours"], {})["gpu_hours"]
    assert not source.counted
    assert source.skipped == {"no n_gpus": 7, "no ffn": 1}


def test_long_sets_are_sampled_evenly(rows: list[PublishedRow]) -> None:
    long = [row for row in rows if row.set == "vtrain_single"]
    lines = [row.line for row in sampled(long)]
    assert 100 <= len(lines) < 200
    assert lines[-1] > long[-1].line - 20


@pytest.mark.slow
def test_small_sets_are_met_without_having_been_seen(rows: list[PublishedRow]) -> None:
    """`windlass plan published` prints the figures for all sets."""
    names = ["korthikanti_t5", "bloom_final"]
    judged = [row for row in rows if row.set in names]
    found = judge(judged, folds(rows, names))
    assert all((mape(source.whole) or 1) < 0.12 for source in found.values())
    figures = verdict(found, judged, left_out=False)["figures"]
    assert figures["time_mape"] < 0.12
