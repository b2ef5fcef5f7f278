import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.scaled import smaller_sizes
from windlass.plan.cost.step_config import Device, Sizes, TrainingStep
from windlass.plan.fleet.alternatives import (
    Goal,
    counted_weights,
    distilled,
    shorter,
    smaller,
    stacked,
    ways_to_meet,
    ways_to_serve,
)

DEVICE = Device("H100", {"bfloat16": 989e12}, 80e9, 3.35e12, 450e9, 50e9, dollars_h=(2.0, 8.0))
SIZES = Sizes(
    layers=32, width=4096, heads=32, kv_heads=8, head_width=128, ffn_width=14336, gated=True,
    vocabulary=32_000, tied=False,
)  # fmt: skip
CASE = TrainingStep(
    SIZES, sequence=4096, global_batch=256, micro_batch=1, device=DEVICE, devices=64, per_machine=8, dp=64
)
TOKENS = 140e9


def step_seconds(case: TrainingStep) -> float:
    """6 N D at two fifths of the peak."""
    flops = 6 * counted_weights(case.sizes) * case.global_batch * case.sequence
    return flops / (case.devices * case.device.peak_flops["bfloat16"] * 0.4)


def loss(weights: float, tokens: float) -> float:
    """Hoffmann et al. 2022."""
    return 1.69 + 406.4 / weights**0.34 + 410.7 / tokens**0.28


def goal(case: TrainingStep = CASE, **limits: float) -> Goal:
    return Goal(
        case=case,
        tokens=TOKENS,
        predict=step_seconds,
        cost=lambda s: (case.devices * s / 3600 * 2.0, case.devices * s / 3600 * 8.0),
        loss=loss,
        fits=lambda c: c.sizes.parameters * 16 / c.devices < 0.8 * c.device.memory_bytes,
        **limits,
    )


WHOLE_S = goal().seconds(CASE, TOKENS)
ASKED_LOSS = loss(SIZES.parameters, TOKENS)


@given(st.floats(0.02, 0.99))
def test_every_way_keeps_to_the_deadline_and_costs_some_loss(share: float) -> None:
    found = ways_to_meet(goal(deadline_s=share * WHOLE_S))
    assert found
    assert all(way.seconds <= share * WHOLE_S for way in found)
    assert [way.loss for way in found] == sorted(way.loss for way in found)
    assert all(way.loss >= ASKED_LOSS - 1e-9 for way in found)


@given(st.floats(0.05, 0.9))
def test_a_budget_is_a_deadline_by_other_means(share: float) -> None:
    per_second = 64 / 3600 * 4.0  # the geometric middle of 2 and 8 dollars
    by_money = smaller(goal(budget_dollars=share * WHOLE_S * per_second))
    by_time = smaller(goal(deadline_s=share * WHOLE_S))
    assert by_money is not None
    assert by_time is not None
    assert by_money.changes == by_time.changes


def test_the_smaller_model_is_the_largest_that_keeps_to_the_limit() -> None:
    limit_s = WHOLE_S / 2
    found = smaller(goal(deadline_s=limit_s))
    assert found is not None
    kept = found.changes["width"], found.changes["layers"]
    larger = [s for s in smaller_sizes(CASE) if (s.width, s.layers) > kept]
    assert larger
    assert all(goal().seconds(replace(CASE, sizes=s), TOKENS) > limit_s for s in larger)
    assert "instead of" in found.sentence


def test_a_model_that_does_not_fit_is_made_smaller_until_it_does() -> None:
    crowded = replace(CASE, devices=1, dp=1)
    found = smaller(goal(crowded))
    assert found is not None
    assert found.changes["layers"] < 32
    assert shorter(goal(crowded, deadline_s=WHOLE_S)) is None


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_smaller_models_keep_the_form_that_the_layout_divides(tp: int, pp: int, virtual: int) -> None:
    before = SIZES.parameters
    for sizes in smaller_sizes(replace(CASE, tp=tp, pp=pp, virtual=virtual)):
        assert sizes.heads % tp == 0
        assert sizes.ffn_width % tp == 0
        assert sizes.layers % (pp * virtual) == 0
        assert sizes.heads // sizes.kv_heads == 4
        assert sizes.width == sizes.heads * sizes.head_width
        assert sizes.parameters <= before
        before = sizes.parameters


def test_stacking_saves_time_and_says_how() -> None:
    found = stacked(goal())
    assert found is not None
    assert found.changes["layers"] == [8, 16, 32]
    assert sum(found.changes["shares_of_steps"]) == pytest.approx(1)
    assert found.seconds == pytest.approx(WHOLE_S * (0.125 / 4 + 0.175 / 2 + 0.7), rel=0.02)
    assert found.loss == pytest.approx(ASKED_LOSS)
    assert "8 -> 16 -> 32" in found.sentence


def test_two_layers_are_not_stacked() -> None:
    assert stacked(goal(replace(CASE, sizes=replace(SIZES, layers=2), pp=2, dp=32))) is None


def test_fewer_tokens_fill_the_time_that_there_is() -> None:
    found = shorter(goal(deadline_s=WHOLE_S / 4))
    assert found is not None
    assert found.changes["tokens"] == pytest.approx(TOKENS / 4, rel=0.001)
    assert found.loss > ASKED_LOSS


def test_without_a_limit_nothing_is_given_up() -> None:
    found = shorter(goal())
    assert found is not None
    assert found.changes["tokens"] == TOKENS


def test_a_limit_below_one_step_leaves_no_way() -> None:
    assert ways_to_meet(goal(deadline_s=1e-6)) == []


def test_a_served_model_gets_smaller_by_four_ways() -> None:
    found = {way.way: way for way in ways_to_serve(goal())}
    assert set(found) == {"int8", "int4", "pruned", "distilled"}
    assert found["int8"].changes["serving_bytes"] == SIZES.parameters
    assert all(way.loss > ASKED_LOSS for way in found.values())


def test_a_student_takes_a_little_longer_and_half_of_the_memory() -> None:
    found = distilled(goal())
    assert found is not None
    assert WHOLE_S < found.seconds < 1.1 * WHOLE_S
    assert found.changes["tokens"] == pytest.approx(TOKENS / 40)


def test_a_model_of_one_head_has_no_student() -> None:
    single = replace(SIZES, heads=1, kv_heads=1, width=128)
    assert distilled(goal(replace(CASE, sizes=single))) is None


def test_only_experts_that_a_token_meets_count_for_the_loss() -> None:
    sparse = replace(SIZES, experts=8, top_k=2, expert_width=14336)
    dense = replace(SIZES, ffn_width=2 * 14336)
    assert counted_weights(sparse) == counted_weights(dense) == dense.parameters
    assert sparse.parameters > 2 * counted_weights(sparse)


def test_an_unknown_price_bounds_nothing() -> None:
    unknown = replace(goal(budget_dollars=1.0), cost=lambda s: None)
    assert unknown.limit_s == math.inf
