import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.local.pipeline_time import order, pipeline_s

stages = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 2)), min_size=1, max_size=5)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "micro"), [(2, 8), (4, 4), (4, 16)])
def test_equal_stages_take_as_long_as_the_published_bubble_says(schedule: str, pp: int, micro: int) -> None:
    seconds = pipeline_s(schedule, [1.0] * pp, [2.0] * pp, micro, 0.0)  # type: ignore[arg-type]
    assert seconds == pytest.approx(3.0 * (micro + pp - 1))


@given(stages, st.integers(1, 8), st.sampled_from(["gpipe", "1f1b"]))
def test_a_step_is_never_shorter_than_its_busiest_stage_nor_than_one_way(
    times: list[tuple[float, float]], micro: int, schedule: str
) -> None:
    forward, backward = zip(*times, strict=True)
    seconds = pipeline_s(schedule, forward, backward, micro, 0.0)  # type: ignore[arg-type]
    assert seconds >= micro * max(f + b for f, b in times) - 1e-9
    assert seconds >= sum(forward) + sum(backward) - 1e-9
    assert seconds <= micro * sum(f + b for f, b in times) + 1e-9


@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from(["gpipe", "1f1b"]))
def test_every_stage_does_every_micro_batch_once_each_way(pp: int, micro: int, schedule: str) -> None:
    for stage in range(pp):
        work = order(schedule, stage, pp, micro)  # type: ignore[arg-type]
        assert sorted(work) == sorted((back, number) for back in (False, True) for number in range(micro))
        assert all(work.index((False, n)) < work.index((True, n)) for n in range(micro))


def test_slow_links_lengthen_a_step() -> None:
    quick, slow = (pipeline_s("1f1b", [1.0] * 3, [2.0] * 3, 6, hand) for hand in (0.0, 0.5))
    assert slow > quick + 4 * 0.5 - 1e-9


def test_zero_bubble_idles_a_third_of_interleaved() -> None:
    times = {
        schedule: pipeline_s(schedule, [1.0] * 4, [2.0] * 4, 8, 0.0, virtual=2)  # type: ignore[arg-type]
        for schedule in ("interleaved", "zbv", "asynchronous")
    }
    assert times["zbv"] - 24 == pytest.approx((times["interleaved"] - 24) / 3)
    assert times["asynchronous"] == pytest.approx(24)
