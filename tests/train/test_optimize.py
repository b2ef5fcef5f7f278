import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windlass.parallel.param_shard import holdings_of
from windlass.spec.job import Train
from windlass.train.optimize import build_optimizer, rate_share

TRAIN = Train()


def share(step: int, schedule: str, steps: int = 100, warmup: int = 10) -> float:
    return rate_share(step, steps=steps, warmup=warmup, schedule=schedule, train=TRAIN)  # type: ignore[arg-type]


def test_warm_up_rises_in_a_line_to_the_peak() -> None:
    assert [share(step, "cosine") for step in range(10)] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert share(10, "cosine") == 1.0


def test_cosine_ends_at_the_final_share() -> None:
    assert share(100, "cosine") == pytest.approx(TRAIN.final_share)
    assert share(55, "cosine") == pytest.approx((1 + TRAIN.final_share) / 2)


def test_wsd_stays_and_then_decays() -> None:
    assert {share(step, "wsd") for step in range(10, 80)} == {1.0}
    assert share(90, "wsd") == pytest.approx((1 + TRAIN.final_share) / 2)
    assert share(100, "wsd") == pytest.approx(TRAIN.final_share)


def test_constant_stays() -> None:
    assert share(99, "constant") == 1.0


@given(
    st.integers(1, 5000),
    st.integers(0, 500),
    st.integers(0, 6000),
    st.sampled_from(["cosine", "wsd", "constant"]),
)
def test_the_share_is_always_between_zero_and_one(steps: int, warmup: int, step: int, schedule: str) -> None:
    found = share(min(step, steps), schedule, steps, min(warmup, steps))
    assert 0 < found <= 1
    assert math.isfinite(found)


def test_matrices_decay_and_vectors_do_not(make_run) -> None:  # type: ignore[no-untyped-def]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    decaying, others = build_optimizer(holdings_of(model), make_run()).param_groups
    assert decaying["weight_decay"] == TRAIN.weight_decay
    assert [p.dim() for p in decaying["params"]] == [2]
    assert others["weight_decay"] == 0.0
    assert [p.dim() for p in others["params"]] == [1, 1, 1]
