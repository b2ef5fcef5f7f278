"""Placement, proposals of another cut, and the theory of idle time beside torch's own tables."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torch_schedules

from windlass.parallel.memory import state_bytes
from windlass.parallel.partition import LayerCosts, cut_model, loads_of
from windlass.parallel.schedule import bubble, place, propose_recut
from windlass.spec.errors import BadInput
from windlass.spec.layout import Layout, Partition, Schedule
from windlass.spec.shape import DecoderShape

SHAPE = DecoderShape(vocabulary=64, context=32, layers=12, width=64, heads=4, kv_heads=4, ffn_width=192)
TABLES: dict[Schedule, Any] = {
    "interleaved": torch_schedules.ScheduleInterleaved1F1B,
    "looped": torch_schedules.ScheduleLoopedBFS,
    "zero-bubble": torch_schedules.ScheduleInterleavedZeroBubble,
    "zbv": torch_schedules.ScheduleZBVZeroBubble,
    "dualpipe-v": torch_schedules.ScheduleDualPipeV,
}


def counts(cut: Partition | None) -> list[int]:
    assert cut is not None
    return [piece.until - piece.first for piece in cut.pieces]


def seconds(cut: Partition, layout: Layout, speeds: list[float]) -> list[float]:
    """What stages would measure on processes of these speeds."""
    return [piece.cost / speeds[piece.position] for piece in cut.pieces]


def test_sequential_placement_leaves_ranks_as_they_are() -> None:
    assert place(Layout(pp=2, tp=2), seed=0, hosts=["a"] * 4) == [0, 1, 2, 3]


def test_round_robin_alternates_between_hosts_along_the_pipeline() -> None:
    layout = Layout(pp=4, placement="round-robin")
    assert place(layout, seed=0, hosts=["a", "a", "b", "b"]) == [0, 2, 1, 3]


def test_round_robin_moves_whole_blocks() -> None:
    layout = Layout(pp=4, tp=2, placement="round-robin")
    assert place(layout, seed=0, hosts=["a"] * 4 + ["b"] * 4) == [0, 1, 4, 5, 2, 3, 6, 7]


def test_a_random_placement_is_fixed_by_its_seed() -> None:
    layout = Layout(pp=8, placement="random")
    placed = [place(layout, seed=seed, hosts=["a"] * 8) for seed in (1, 1, 2)]
    assert placed[0] == placed[1] != placed[2]


def test_the_costliest_piece_goes_to_the_fastest_worker() -> None:
    layout = Layout(pp=3, placement="load-aware", stages=(2, 7, 3))
    cut = cut_model(SHAPE, layout)
    assert place(layout, seed=0, hosts=["a"] * 3, speeds=[1.0, 3.0, 9.0], cut=cut) == [0, 2, 1]


def test_a_worker_with_too_little_memory_is_passed_over() -> None:
    layout = Layout(pp=2, placement="load-aware", stages=(9, 3))
    cut = cut_model(SHAPE, layout)
    needs = state_bytes(cut, SHAPE, layout)
    placed = place(
        layout,
        seed=0,
        hosts=["a"] * 2,
        speeds=[1.0, 9.0],
        memories=[needs[0], needs[1]],
        cut=cut,
        needs=needs,
    )
    assert placed == [0, 1]


def test_workers_that_cannot_hold_the_stages_are_refused() -> None:
    layout = Layout(pp=2, placement="load-aware")
    with pytest.raises(BadInput, match="no placement fits"):
        place(layout, seed=0, hosts=["a"] * 2, memories=[10, 10], needs=[5, 11])


@given(
    placement=st.sampled_from(["sequential", "round-robin", "random", "load-aware"]),
    pp=st.integers(1, 6),
    tp=st.integers(1, 3),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_every_rank_is_placed_once_and_tp_neighbours_stay_together(
    placement: str, pp: int, tp: int, seed: int, data: st.DataObject
) -> None:
    layout = Layout.model_validate({"pp": pp, "tp": tp, "placement": placement})
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=layout.world, max_size=layout.world))
    speeds = data.draw(st.lists(st.floats(0.1, 9), min_size=layout.world, max_size=layout.world))
    ranks = place(layout, seed=seed, hosts=hosts, speeds=speeds)
    assert sorted(ranks) == list(range(layout.world))
    for start in range(0, layout.world, tp):
        assert ranks[start : start + tp] == list(range(ranks[start], ranks[start] + tp))


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5))
def test_load_aware_placement_finds_room_whenever_there_is_some(
    workers: list[tuple[float, int, int]],
) -> None:
    layout = Layout(pp=len(workers), placement="load-aware")
    speeds, needs, memories = (list(column) for column in zip(*workers, strict=True))
    fits = all(need <= memory for need, memory in zip(sorted(needs), sorted(memories), strict=True))
    ask: dict[str, Any] = {"seed": 0, "hosts": ["a"] * layout.pp, "speeds": speeds, "memories": memories}
    if not fits:
        with pytest.raises(BadInput):
            place(layout, **ask, needs=needs)
        return
    ranks = place(layout, **ask, needs=needs)
    assert all(needs[position] <= memories[rank] for position, rank in enumerate(ranks))


def test_a_straggler_at_half_speed_gets_fewer_layers() -> None:
    layout = Layout(pp=3)
    cut = cut_model(SHAPE, layout)
    better = propose_recut(cut, SHAPE, layout, seconds(cut, layout, [1.0, 0.5, 1.0]))
    assert counts(cut) == [4, 4, 4]
    assert counts(better) == [5, 2, 5]


def test_even_stages_propose_nothing() -> None:
    layout = Layout(pp=3)
    cut = cut_model(SHAPE, layout)
    assert propose_recut(cut, SHAPE, layout, seconds(cut, layout, [1.0, 1.0, 1.0])) is None


def test_a_straggler_among_virtual_stages_gets_fewer_layers_too() -> None:
    layout = Layout(pp=2, virtual=2, schedule="interleaved")
    cut = cut_model(SHAPE, layout)
    better = propose_recut(cut, SHAPE, layout, seconds(cut, layout, [1.0, 0.5]))
    assert better is not None
    assert sum(p.until - p.first for p in better.at(1)) < sum(p.until - p.first for p in cut.at(1))


@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=4))
def test_a_proposal_gains_a_tenth_and_is_not_made_twice(speeds: list[float]) -> None:
    layout = Layout(pp=len(speeds))
    cut = cut_model(SHAPE, layout)
    better = propose_recut(cut, SHAPE, layout, seconds(cut, layout, speeds))
    if better is not None:
        assert max(loads_of(better, layout, speeds)) <= 0.9 * max(loads_of(cut, layout, speeds)) * (1 + 1e-9)
        assert propose_recut(better, SHAPE, layout, seconds(better, layout, speeds)) is None


def test_a_stage_that_was_not_measured_proposes_nothing() -> None:
    layout = Layout(pp=2)
    assert propose_recut(cut_model(SHAPE, layout), SHAPE, layout, [0.0, 1.0]) is None


def test_measured_costs_count_for_more_than_predicted_ones() -> None:
    layout = Layout(pp=2)
    cut = cut_model(SHAPE, layout)
    heavy_head = LayerCosts(layer=1.0, embedding=0.0, head=6.0)
    measured = [6.0, 12.0]
    assert counts(propose_recut(cut, SHAPE, layout, measured, costs=heavy_head)) == [9, 3]


def test_the_bubble_of_1f1b_is_as_published() -> None:
    assert bubble("1f1b", pp=4, micro_batches=8) == pytest.approx(3 / 11)
    assert bubble("gpipe", pp=1, micro_batches=8) == 0
    assert bubble("asynchronous", pp=4, micro_batches=8) == 0


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("rounds", [2, 4])
@pytest.mark.parametrize("schedule", TABLES)
def test_the_bubble_is_what_the_tables_of_torch_give(schedule: Schedule, pp: int, rounds: int) -> None:
    virtuals = (2,) if schedule in ("zbv", "dualpipe-v") else (2, 3)
    for virtual in virtuals:
        found = idle_share(TABLES[schedule], pp, rounds * pp, virtual)
        assert bubble(schedule, pp, rounds * pp, virtual) == pytest.approx(found)


class OfflineStage:
    """What torch's schedules ask of a stage before anything runs."""

    has_backward, submod, group = True, None, None

    def __init__(self, index: int, pp: int, virtual: int) -> None:
        self.stage_index, self.group_size, self.group_rank = index, pp, 0
        self.num_stages = pp * virtual
        self.is_first, self.is_last = index == 0, index == pp * virtual - 1
        self.stage_index_to_group_rank = {stage: stage % pp for stage in range(pp * virtual)}


def idle_share(schedule: Any, pp: int, micro_batches: int, virtual: int) -> float:
    """Work torch's table through: an action starts when its process is free and its input is there."""
    stages = [OfflineStage(number * pp, pp, virtual) for number in range(virtual)]
    table = schedule(stages, micro_batches, loss_fn=lambda x, y: x).pipeline_order
    waiting = {
        rank: [single for action in row if action is not None for single in action.sub_actions or (action,)]
        for rank, row in table.items()
    }
    ended: dict[tuple[str, int, int], int] = {}
    clock = dict.fromkeys(waiting, 0)
    while any(waiting.values()):
        rank, action = next((r, row[0]) for r, row in waiting.items() if row and ready(row[0], ended, stages))
        name, inputs, takes = described(action, stages)
        clock[rank] = takes + max([clock[rank], *(ended[i] for i in inputs)])
        ended[(name, action.stage_index, action.microbatch_index)] = clock[rank]
        waiting[rank].pop(0)
    return 1 - 3 * virtual * micro_batches / max(clock.values())


def ready(action: Any, ended: dict[tuple[str, int, int], int], stages: list[OfflineStage]) -> bool:
    return all(needed in ended for needed in described(action, stages)[1])


def described(action: Any, stages: list[OfflineStage]) -> tuple[str, list[tuple[str, int, int]], int]:
    """Return what an action makes, what it needs, and how long it takes."""
    stage, batch = action.stage_index, action.microbatch_index
    match action.computation_type.name:
        case "FORWARD":
            return "forward", [("forward", stage - 1, batch)] if stage else [], 1
        case "BACKWARD_WEIGHT":
            return "weight", [("backward", stage, batch)], 1
        case kind:
            last = stage == stages[0].num_stages - 1
            inputs = [("forward", stage, batch)] + ([] if last else [("backward", stage + 1, batch)])
            return "backward", inputs, 2 if kind == "FULL_BACKWARD" else 1
