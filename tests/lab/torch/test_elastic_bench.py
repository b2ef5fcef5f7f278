import pytest

from windlass.lab.torch.elastic_bench import SAVE_SHAPE, bench_elastic
from windlass.spec.shape import DecoderShape

TINY = DecoderShape(
    vocabulary=8192, context=64, layers=2, width=32, heads=2, kv_heads=2, ffn_width=64, tied=True
)


def test_the_model_to_save_has_110_million_weights() -> None:
    assert SAVE_SHAPE.parameters == pytest.approx(110e6, rel=0.01)


@pytest.mark.long
@pytest.mark.slow
def test_the_bench_of_elastic_training_measures_both_its_costs() -> None:
    found = bench_elastic(1, step_shape=TINY, save_shape=TINY, save_every_s=0.5, saves=2, steps=10)
    figures = found["figures"]
    assert figures["plain_step_s"] > 0
    assert figures["elastic_step_s"] > 0
    assert -1 < figures["cost_when_calm"] < 100
    assert -1 < figures["cpu_cost_when_calm"] < 100
    assert figures["checkpoint_stall_steps"] >= 0
