"""The cutter: every layer once and in order, the largest load as small as it can be, and what fits where."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.models.build import outline
from windlass.parallel.memory import held_weights, state_bytes
from windlass.parallel.param_shard import whole
from windlass.parallel.partition import LayerCosts, box_of, cut_model, loads_of, predicted_costs
from windlass.spec.errors import BadInput
from windlass.spec.layout import Layout, Partition, Schedule
from windlass.spec.shape import BertShape, DecoderShape, MlpShape, Network

LLAMA = DecoderShape(vocabulary=512, context=32, layers=8, width=32, heads=4, kv_heads=2, ffn_width=96)
SHAPES: tuple[Network, ...] = (
    LLAMA,
    LLAMA.model_copy(update={"tied": True}),
    DecoderShape(family="gpt2", vocabulary=301, context=32, layers=8, width=32, heads=4, ffn_width=128),
    BertShape(vocabulary=301, context=32, layers=8, width=32, heads=4, ffn_width=128),
    MlpShape(vocabulary=301, context=32, layers=8, width=32, ffn_width=128, window=4),
)
SCHEDULES: tuple[tuple[Schedule, int], ...] = (
    ("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3), ("looped", 2),
    ("zero-bubble", 2), ("zbv", 2), ("dualpipe-v", 2),
)  # fmt: skip

costs = st.builds(LayerCosts, st.floats(0.1, 10), st.floats(0, 10), st.floats(0, 40))
speed = st.floats(0.1, 10)


def layout_of(pp: int, schedule: Schedule = "1f1b", virtual: int = 1, **more: object) -> Layout:
    return Layout.model_validate({"pp": pp, "schedule": schedule, "virtual": virtual, **more})


def deep(layers: int) -> DecoderShape:
    return LLAMA.model_copy(update={"layers": layers})


def counts(cut: Partition) -> list[int]:
    return [piece.until - piece.first for piece in cut.pieces]


@st.composite
def problems(draw: st.DrawFn) -> tuple[DecoderShape, Layout, LayerCosts, list[float]]:
    """A model, a layout that it can have, costs, and a speed for each device."""
    pp = draw(st.integers(2, 4))
    schedule, virtual = draw(st.sampled_from(SCHEDULES))
    layers = draw(st.integers(pp * virtual, pp * virtual + 9))
    speeds = draw(st.lists(speed, min_size=pp, max_size=pp))
    return deep(layers), layout_of(pp, schedule, virtual), draw(costs), speeds


@given(problems(), st.sampled_from(["balanced", "fixed"]))
def test_stages_cover_every_layer_once_and_in_order(
    problem: tuple[DecoderShape, Layout, LayerCosts, list[float]], rule: str
) -> None:
    shape, layout, known, speeds = problem
    cut = cut_model(shape, layout.model_copy(update={"cut": rule}), costs=known, speeds=speeds)
    assert [layer for p in cut.pieces for layer in range(p.first, p.until)] == list(range(shape.layers))
    assert [p.stage for p in cut.pieces] == list(range(layout.stage_count))
    assert all(p.until > p.first for p in cut.pieces)
    assert [p.embedding for p in cut.pieces] == [True] + [False] * (layout.stage_count - 1)
    assert [p.head for p in cut.pieces] == [False] * (layout.stage_count - 1) + [True]
    assert sum(p.cost for p in cut.pieces) == pytest.approx(1)


@given(problems())
def test_a_balanced_cut_is_never_worse_than_a_fixed_one(
    problem: tuple[DecoderShape, Layout, LayerCosts, list[float]],
) -> None:
    shape, layout, known, speeds = problem
    balanced = cut_model(shape, layout, costs=known, speeds=speeds)
    fixed = cut_model(shape, layout.model_copy(update={"cut": "fixed"}), costs=known, speeds=speeds)
    assert max(loads_of(balanced, layout, speeds)) <= max(loads_of(fixed, layout, speeds)) * (1 + 1e-9)


def compositions(layers: int, stages: int) -> list[tuple[int, ...]]:
    tried = product(range(1, layers - stages + 2), repeat=stages)
    return [numbers for numbers in tried if sum(numbers) == layers]


@given(
    pp=st.integers(2, 3),
    schedule=st.sampled_from([s for s in SCHEDULES if s[1] < 3]),
    over=st.integers(0, 4),
    known=costs,
    speeds=st.lists(speed, min_size=3, max_size=3),
)
def test_no_other_cut_has_a_smaller_largest_load(
    pp: int, schedule: tuple[Schedule, int], over: int, known: LayerCosts, speeds: list[float]
) -> None:
    layout = layout_of(pp, *schedule)
    shape, speeds = deep(layout.stage_count + over), speeds[:pp]
    found = max(loads_of(cut_model(shape, layout, costs=known, speeds=speeds), layout, speeds))
    others = (
        cut_model(shape, layout.model_copy(update={"stages": stages}), costs=known)
        for stages in compositions(shape.layers, layout.stage_count)
    )
    best = min(max(loads_of(other, layout, speeds)) for other in others)
    assert found == pytest.approx(best)


def test_equal_costs_make_balanced_and_fixed_alike() -> None:
    layout = layout_of(4)
    balanced = cut_model(deep(8), layout, costs=LayerCosts(layer=1, embedding=0, head=0))
    assert counts(balanced) == counts(cut_model(deep(8), layout.model_copy(update={"cut": "fixed"})))


def test_a_costly_head_takes_layers_from_the_last_stage() -> None:
    cut = cut_model(deep(10), layout_of(2), costs=LayerCosts(layer=1, embedding=0, head=4))
    assert counts(cut) == [7, 3]


def test_fixed_stages_differ_by_one_layer_at_most() -> None:
    assert counts(cut_model(deep(10), layout_of(4, cut="fixed"))) == [3, 3, 2, 2]


def test_the_layout_may_say_the_stages_itself() -> None:
    cut = cut_model(deep(10), layout_of(2, stages=[9, 1]))
    assert counts(cut) == [9, 1]
    assert cut.how == "as the layout says"


def test_stages_that_do_not_add_up_to_the_model_are_refused() -> None:
    with pytest.raises(BadInput, match="stages hold 9 layers in all, the model 8"):
        cut_model(deep(8), layout_of(2, stages=[5, 4]))


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(BadInput, match="4 stages, but the model has only 3 layers"):
        cut_model(deep(3), layout_of(4))


def test_a_device_at_half_the_speed_gets_half_the_layers() -> None:
    costs = LayerCosts(layer=1, embedding=0, head=0)
    assert counts(cut_model(deep(9), layout_of(2), costs=costs, speeds=[2.0, 1.0])) == [6, 3]


@pytest.mark.parametrize(
    ("schedule", "virtual", "positions"),
    [
        ("1f1b", 1, [0, 1, 2]),
        ("interleaved", 2, [0, 1, 2, 0, 1, 2]),
        ("zbv", 2, [0, 1, 2, 2, 1, 0]),
        ("dualpipe-v", 2, [0, 1, 2, 2, 1, 0]),
    ],
)
def test_stages_go_round_in_loops_or_down_and_up_again(
    schedule: Schedule, virtual: int, positions: list[int]
) -> None:
    cut = cut_model(deep(8), layout_of(3, schedule, virtual))
    assert [piece.position for piece in cut.pieces] == positions


@pytest.mark.parametrize("shape", SHAPES[:4])
def test_predicted_costs_add_up_to_the_whole_forward_pass(shape: Network) -> None:
    known = predicted_costs(shape)
    assert shape.layers * known.layer + known.head == pytest.approx(shape.forward_flops_per_token())
    assert known.embedding < known.layer / 50


def test_the_matrix_over_a_window_is_a_cost_of_the_embedding() -> None:
    shape = SHAPES[4]
    known = predicted_costs(shape)
    whole = shape.layers * known.layer + known.embedding + known.head
    looked_up = 2 * shape.width  # two tables; no product
    assert whole - looked_up == pytest.approx(shape.forward_flops_per_token())


@pytest.mark.parametrize("shape", SHAPES)
def test_weights_are_those_of_the_built_model(shape: Network) -> None:
    named = {**shape.embedding_weights(), **shape.head_weights()}
    for layer in range(shape.layers):
        named |= {f"layers.{layer}.{name}": size for name, size in shape.layer_weights().items()}
    built = {name: tuple(weight.shape) for name, weight in outline(shape).named_parameters()}
    assert named == built


@pytest.mark.parametrize("shape", SHAPES)
def test_one_process_holds_every_weight(shape: Network) -> None:
    layout = Layout()
    assert held_weights(cut_model(shape, layout), shape, layout) == [shape.parameters]


def test_a_tied_matrix_is_held_at_both_ends_of_a_pipeline() -> None:
    layout, tied = layout_of(2), LLAMA.model_copy(update={"tied": True})
    held = sum(held_weights(cut_model(tied, layout), tied, layout))
    assert held == tied.parameters + tied.vocabulary * tied.width


def test_memory_limits_bound_what_a_device_gets() -> None:
    layout = layout_of(2)
    free = cut_model(LLAMA, layout)
    memories = [state_bytes(free, LLAMA, layout)[0] - 1, 1 << 40]
    bound = cut_model(LLAMA, layout, memories=memories)
    assert counts(bound)[0] == counts(free)[0] - 1
    assert state_bytes(bound, LLAMA, layout)[0] <= memories[0]


def test_a_model_that_fits_nowhere_is_refused_with_the_room_that_there_is() -> None:
    layout = layout_of(2)
    one_less = [needed - 1 for needed in state_bytes(cut_model(LLAMA, layout), LLAMA, layout)]
    with pytest.raises(BadInput, match=r"room for 6 layers .* and the model has 8"):
        cut_model(LLAMA, layout, memories=one_less)


def test_a_device_too_small_for_one_layer_is_named() -> None:
    with pytest.raises(BadInput, match=r"the device at position 1 has 1\.0 KiB, but 1 layer "):
        cut_model(LLAMA, layout_of(2), memories=[1 << 40, 1024])


def test_a_fixed_cut_is_checked_against_memory_too() -> None:
    with pytest.raises(BadInput, match=r"position 0 has 1\.0 KiB, but 4 layers"):
        cut_model(LLAMA, layout_of(2, cut="fixed"), memories=[1024, 1 << 40])


def test_as_many_speeds_as_devices_must_be_given() -> None:
    with pytest.raises(BadInput, match="3 speeds are given, but pp = 2"):
        cut_model(LLAMA, layout_of(2), speeds=[1, 1, 1])


def test_without_tensor_parallelism_no_feature_is_divided() -> None:
    assert cut_model(LLAMA, layout_of(2)).features == {}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_divided_weight_exists_and_every_large_one_is_divided(shape: Network) -> None:
    features = cut_model(shape, Layout(tp=2)).features
    sizes = {**shape.embedding_weights(), **shape.head_weights(), **shape.layer_weights()}
    assert features.keys() <= sizes.keys()
    whole_matrices = {name for name, size in sizes.items() if len(size) > 1} - features.keys()
    assert whole_matrices <= {"positions.weight", "token_types.weight", "head.dense.weight", "mix.weight"}


def test_biases_go_with_outputs_but_not_with_sums() -> None:
    features = cut_model(SHAPES[2], Layout(tp=2)).features
    assert features["attention.query.weight"] == features["attention.query.bias"] == 0
    assert features["attention.output.weight"] == 1
    assert "attention.output.bias" not in features


@given(st.sampled_from(SHAPES), st.integers(1, 5))
def test_the_boxes_of_all_tp_processes_make_the_whole_weight(shape: Network, tp: int) -> None:
    cut = Partition(pieces=(), features=cut_model(shape, Layout(tp=2)).features, how="")
    for name, weight in outline(shape).named_parameters():
        boxes = [box_of(name, weight.shape, cut, rank, tp) for rank in range(tp)]
        sizes = [math.prod(stop - start for start, stop in spans) for spans in boxes]
        divided = name.removeprefix("layers.").lstrip("0123456789").removeprefix(".") in cut.features
        assert sum(sizes) == weight.numel() * (1 if divided else tp)


@given(st.integers(1, 40), st.integers(1, 7))
def test_boxes_are_divided_as_holdings_are(vocabulary: int, tp: int) -> None:
    cut = Partition(pieces=(), features={"embedding.weight": 0}, how="")
    for rank in range(tp):
        spans = box_of("embedding.weight", (vocabulary, 4), cut, rank, tp)
        assert spans == whole((vocabulary, 4)).divided(0, tp, rank).spans
