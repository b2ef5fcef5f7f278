import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.parallel.partition import cut_model
from windlass.plan.local.stages import stage_layers
from windlass.spec.layout import Layout
from windlass.spec.shape import DecoderShape


def llama(layers: int, vocabulary: int) -> DecoderShape:
    return DecoderShape(
        vocabulary=vocabulary, context=64, layers=layers, width=64, heads=4, kv_heads=2, ffn_width=192
    )


def layers_of_cut(shape: DecoderShape, layout: Layout) -> list[int]:
    cut = cut_model(shape, layout)
    return [sum(p.until - p.first for p in cut.at(position)) for position in range(layout.pp)]


@given(st.integers(8, 40), st.integers(100, 40_000), st.integers(1, 8))
def test_a_plan_expects_the_cut_that_the_cutter_makes(layers: int, vocabulary: int, pp: int) -> None:
    shape, layout = llama(layers, vocabulary), Layout(pp=pp)
    assert stage_layers(shape, layout) == layers_of_cut(shape, layout)


@pytest.mark.parametrize(
    "settings",
    [
        {"pp": 3, "cut": "fixed"},
        {"pp": 2, "stages": (5, 6)},
        {"pp": 2, "virtual": 2, "schedule": "interleaved"},
        {"pp": 2, "virtual": 2, "schedule": "zbv"},
        {"pp": 2, "virtual": 2, "schedule": "zbv", "cut": "fixed"},
    ],
)
def test_every_way_to_cut_is_known(settings: dict[str, object]) -> None:
    shape, layout = llama(11, 4096), Layout.model_validate(settings)
    assert stage_layers(shape, layout) == layers_of_cut(shape, layout)
