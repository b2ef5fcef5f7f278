from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.fleet.timeline import kind_of, shares_of, timeline


def layout(
    pp: int, micro_batches: int, virtual: int = 1, recompute: str = "none", share: float = 1.0, **parts: float
) -> dict[str, Any]:
    axes = {"pp": pp, "virtual": virtual, "micro_batches": micro_batches}
    return {
        "choices": {**axes, "recompute": recompute, "recompute_share": share},
        "step_parts_s": {name.replace("_", " "): seconds for name, seconds in parts.items()},
    }


PARTS = {
    "products": 6.0, "attention": 1.0, "tensor_exchange": 1.0, "pipeline_idle": 1.5, "pipeline_sends": 0.2,
    "gradient_exchange": 0.5, "optimizer": 0.1, "stragglers": 0.3,
}  # fmt: skip


@given(st.integers(1, 12), st.integers(1, 40), st.sampled_from([1, 2, 4]), st.sampled_from(["none", "full"]))
def test_every_stage_is_accounted_for_from_beginning_to_end(
    pp: int, micro_batches: int, virtual: int, recompute: str
) -> None:
    idle = {"pipeline_idle": PARTS["pipeline_idle"] if pp > 1 else 0.0}
    planned = layout(pp, micro_batches, virtual, recompute, **{**PARTS, **idle})
    pieces = timeline(planned)
    for stage in range(pp):
        own = sorted((piece for piece in pieces if piece.stage == stage), key=lambda piece: piece.begin_s)
        assert own[0].begin_s == 0
        assert own[-1].end_s == pytest.approx(sum(planned["step_parts_s"].values()))
        for before, after in pairwise(own):
            assert after.begin_s == pytest.approx(before.end_s)


@given(st.integers(2, 8), st.integers(1, 30))
def test_one_forward_one_backward_idles_as_long_as_the_formula_says(pp: int, micro_batches: int) -> None:
    """Narayanan et al. 2021, section 2.2: (p - 1) / m of the work."""
    work = 7.0
    idle = work * (pp - 1) / micro_batches
    pieces = timeline(layout(pp, micro_batches, products=work, pipeline_idle=idle))
    for stage in range(pp):
        waited = sum(p.end_s - p.begin_s for p in pieces if p.stage == stage and p.kind == "waiting")
        computed = sum(p.end_s - p.begin_s for p in pieces if p.stage == stage and p.kind != "waiting")
        assert waited == pytest.approx(idle)
        assert computed == pytest.approx(work)


def test_a_stage_goes_forth_as_often_as_stages_come_before_it_goes_back() -> None:
    pieces = timeline(layout(4, 8, products=8.0, pipeline_idle=3.0))
    for stage in range(4):
        own = [
            p.kind
            for p in sorted(pieces, key=lambda p: p.begin_s)
            if p.stage == stage and p.kind != "waiting"
        ]
        assert own[: 4 - stage] == ["forward"] * (4 - stage)
        assert own[4 - stage] == "backward"


def test_many_micro_batches_are_drawn_as_few_pieces() -> None:
    assert len(timeline(layout(16, 512, **PARTS))) < 16 * 10


def test_recomputing_makes_the_way_back_three_times_as_long() -> None:
    pieces = timeline(layout(1, 1, recompute="full", products=4.0))
    assert [piece.end_s - piece.begin_s for piece in pieces] == [1.0, 3.0]
    pieces = timeline(layout(1, 1, recompute="full", share=0.5, products=3.5))
    assert [piece.end_s - piece.begin_s for piece in pieces] == [1.0, 2.5]


def test_parts_are_reported_by_their_names() -> None:
    assert kind_of("expert exchange") == "communication"
    assert kind_of("weights gathered") == "communication"
    assert kind_of("pipeline idle") == "waiting"
    assert kind_of("head and loss") == "computing"
    shares = shares_of({name.replace("_", " "): seconds for name, seconds in PARTS.items()})
    assert (shares.computing_s, shares.communication_s, shares.idle_s) == (7.0, 1.2, 1.5)
    assert (shares.exchange_s, shares.update_s, shares.late_s) == (0.5, 0.1, 0.3)
