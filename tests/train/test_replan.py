from collections.abc import Callable

from windlass.spec.run import Run
from windlass.train.replan import replanned


def timed(make_run: Callable[..., Run], steps: int, time_s: float) -> Run:
    return make_run().model_copy(update={"steps": steps, "time_s": time_s, "warmup_steps": steps // 10})


def test_steps_that_take_longer_than_planned_become_fewer(make_run: Callable[..., Run]) -> None:
    run = replanned(timed(make_run, 1000, 60.0), 8, train_s=8.0)
    assert 50 <= run.steps <= 60
    assert run.warmup_steps < run.steps


def test_quicker_steps_become_more(make_run: Callable[..., Run]) -> None:
    assert replanned(timed(make_run, 100, 60.0), 8, train_s=0.8).steps > 500


def test_a_prediction_that_holds_is_left_alone(make_run: Callable[..., Run]) -> None:
    run = timed(make_run, 552, 60.0)
    assert replanned(run, 8, train_s=0.8) is run


def test_a_run_without_a_time_budget_is_never_changed(make_run: Callable[..., Run]) -> None:
    run = make_run()
    assert replanned(run, 8, train_s=1000.0) is run


def test_time_that_is_used_up_ends_the_run_at_the_next_step(make_run: Callable[..., Run]) -> None:
    assert replanned(timed(make_run, 1000, 60.0), 64, train_s=100.0).steps == 65
