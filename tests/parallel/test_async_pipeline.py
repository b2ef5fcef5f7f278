"""How far stages of a pipeline without stops may go ahead, and which weights they go back with."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windlass.models.build import build
from windlass.parallel.async_pipeline import Window, window_of
from windlass.parallel.stage import ModelStage
from windlass.parallel.weight_stash import Stash
from windlass.spec.layout import StageSlice
from windlass.spec.shape import DecoderShape

Work = tuple[str, int]
"""What a stage does: ("forward", micro-batch), ("backward", micro-batch) or ("update", step)."""

rows = st.fixed_dictionaries(
    {"stages": st.integers(1, 5), "staleness": st.integers(0, 3), "micro_batches": st.integers(1, 6)}
)
borders = st.lists(st.integers(1, 4), min_size=1, max_size=3)
"""Steps from each boundary to the next."""


def works(window: Window, periods: list[int]) -> Iterator[Work]:
    """Yield what one stage does, in its order, from the first step over all borders."""
    gone, boundary = 0, 0
    for period in periods:
        first, boundary = boundary, boundary + period
        for step in range(first, boundary):
            for micro in range(step * window.micro_batches, (step + 1) * window.micro_batches):
                for ahead in range(gone, window.until(micro, boundary)):
                    yield "forward", ahead
                gone = max(gone, window.until(micro, boundary))
                yield "backward", micro
            yield "update", step


def play(stages: int, staleness: int, micro_batches: int, periods: list[int]) -> list[list[Work]]:
    """Let stages do their work as soon as what it needs is there; return what each could do."""
    todo = [list(works(window_of(s, stages, staleness, micro_batches), periods)) for s in range(stages)]
    done: list[list[Work]] = [[] for _ in range(stages)]
    moved = True
    while moved:
        moved = False
        for stage, waiting in enumerate(todo):
            while waiting and _ready(stage, waiting[0], done):
                done[stage].append(waiting.pop(0))
                moved = True
    assert not any(todo), "stages wait for each other"
    return done


def _ready(stage: int, work: Work, done: list[list[Work]]) -> bool:
    kind, _ = work
    if kind == "forward":
        return stage == 0 or work in done[stage - 1]
    return kind == "update" or stage == len(done) - 1 or work in done[stage + 1]


@given(row=rows, periods=borders)
def test_no_stage_waits_for_one_that_waits_for_it(row: dict[str, int], periods: list[int]) -> None:
    done = play(**row, periods=periods)
    count = sum(periods) * row["micro_batches"]
    for stage in done:
        assert [n for kind, n in stage if kind == "forward"] == list(range(count))
        assert [n for kind, n in stage if kind == "backward"] == list(range(count))


@given(row=rows, periods=borders)
def test_no_forward_pass_misses_more_updates_than_allowed(row: dict[str, int], periods: list[int]) -> None:
    for stage in play(**row, periods=periods):
        updates = 0
        for kind, number in stage:
            if kind == "update":
                updates = number + 1
            elif kind == "forward":
                assert number // row["micro_batches"] - updates <= row["staleness"]


@given(row=rows, periods=borders)
def test_nothing_is_in_progress_at_a_sync_point(row: dict[str, int], periods: list[int]) -> None:
    marks = [sum(periods[: n + 1]) - 1 for n in range(len(periods))]
    for stage in play(**row, periods=periods):
        for mark in marks:
            before = [kind for kind, _ in stage[: stage.index(("update", mark))]]
            assert before.count("forward") == before.count("backward")


@given(row=rows, periods=borders)
def test_copies_are_made_exactly_where_some_are_under_way_at_an_update(
    row: dict[str, int], periods: list[int]
) -> None:
    ends = [sum(periods[: n + 1]) for n in range(len(periods))]
    for number, stage in enumerate(play(**row, periods=periods)):
        window = window_of(number, **row)
        for step in range(sum(periods)):
            before = [kind for kind, _ in stage[: stage.index(("update", step))]]
            under_way = before.count("forward") - before.count("backward")
            boundary = next(end for end in ends if end > step)
            assert window.leaves(step, boundary) == (under_way > 0)


def test_the_first_of_four_stages_is_three_ahead() -> None:
    assert window_of(0, 4, staleness=1, micro_batches=8).until(0, boundary=10) == 4


def test_a_short_batch_bounds_how_far_a_stage_goes_ahead() -> None:
    assert window_of(0, 4, staleness=1, micro_batches=1).until(0, boundary=10) == 2


@pytest.fixture
def stage() -> ModelStage:
    shape = DecoderShape(
        vocabulary=32, context=8, layers=1, width=16, heads=2, kv_heads=2, ffn_width=32, tied=False
    )
    piece = StageSlice(stage=0, first=0, until=1, embedding=True, head=True, position=0, cost=1.0)
    return ModelStage(build(shape, seed=3), piece, None)


def test_a_backward_pass_uses_the_weights_of_its_forward_pass(stage: ModelStage) -> None:
    tokens_BT, live = torch.randint(0, 32, (2, 8)), list(stage.parameters())
    stage(tokens_BT).square().sum().backward()
    wanted = [p.grad.clone() for p in live if p.grad is not None]
    stage.zero_grad()

    stash = Stash(stage)
    version = stash.open(lasting=True)
    stash.mount(version)
    y_BTD = stage(tokens_BT)
    with torch.no_grad():
        for parameter in live:
            parameter.add_(1.0)
    stash.close()
    with stash.adding_up(version):
        y_BTD.square().sum().backward()
    found = [p.grad for p in live if p.grad is not None]
    assert wanted
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def test_gradients_of_two_versions_add_up_in_the_live_weights(stage: ModelStage) -> None:
    tokens_BT, live, stash = torch.randint(0, 32, (2, 8)), list(stage.parameters()), Stash(stage)
    old = stash.open(lasting=True)
    stash.close()
    for version in (old, stash.open(lasting=False)):
        stash.mount(version)
        y_BTD = stage(tokens_BT)
        with stash.adding_up(version):
            y_BTD.square().sum().backward()
    twice = [p.grad.clone() for p in live if p.grad is not None]
    stage.zero_grad()
    stage(tokens_BT).square().sum().backward()
    once = [p.grad for p in live if p.grad is not None]
    assert once
    assert all(torch.equal(a, 2 * b) for a, b in zip(twice, once, strict=True))


def test_after_an_update_the_stage_computes_with_the_live_weights(stage: ModelStage) -> None:
    live, stash = list(stage.parameters()), Stash(stage)
    stash.mount(stash.open(lasting=True))
    assert not any(a is b for a, b in zip(stage.parameters(), live, strict=True))
    stash.close()
    assert all(a is b for a, b in zip(stage.parameters(), live, strict=True))


def test_a_first_stage_goes_back_without_a_copy_of_its_table(stage: ModelStage) -> None:
    piece = stage.piece.model_copy(update={"head": False})
    first = ModelStage(stage.model, piece, None)
    tokens_BT, live = torch.randint(0, 32, (2, 8)), list(first.parameters())
    first(tokens_BT).square().sum().backward()
    wanted = [p.grad.clone() for p in live if p.grad is not None]
    first.zero_grad()

    stash = Stash(first)
    version = stash.open(lasting=True)
    stash.mount(version)
    y_BTD = first(tokens_BT)
    table = first.model.get_submodule("embedding").get_parameter("weight")
    with torch.no_grad():
        for parameter in live:
            parameter.add_(1.0)
    with stash.adding_up(version):
        y_BTD.square().sum().backward()
    assert any(table is weight for weight in live)
    assert all(torch.equal(p.grad, g) for p, g in zip(live, wanted, strict=True) if p.grad is not None)
