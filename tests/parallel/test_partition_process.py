"""The entry point that describes a partition: its output, and that it needs no torch."""

import json
import subprocess
import sys

import pytest

from windlass.parallel.__main__ import describe
from windlass.spec.layout import Layout
from windlass.spec.shape import DecoderShape

SHAPE = DecoderShape(vocabulary=8192, context=64, layers=8, width=128, heads=2, kv_heads=2, ffn_width=384)


def test_a_cut_is_reported_with_what_each_process_holds() -> None:
    found = describe(SHAPE, Layout(pp=2), micro_batches=8)
    assert [piece["position"] for piece in found["cut"]["pieces"]] == [0, 1]
    assert sum(found["loads"]) == pytest.approx(1)
    assert sum(found["weights"]) == SHAPE.parameters
    assert found["state_bytes"] == [16 * weights for weights in found["weights"]]
    assert found["bubble"] == pytest.approx(1 / 9)


def test_fixed_and_balanced_are_compared() -> None:
    uneven = describe(SHAPE, Layout(pp=2, cut="fixed"), micro_batches=8)["unevenness"]
    assert 1 <= uneven["balanced"] < uneven["fixed"] == uneven["this"]


def test_a_slow_device_counts_by_its_speed() -> None:
    even = describe(SHAPE, Layout(pp=2, stages=(4, 4)), micro_batches=8, speeds=[1.0, 0.5])
    cut = describe(SHAPE, Layout(pp=2), micro_batches=8, speeds=[1.0, 0.5])
    assert cut["unevenness"]["this"] < even["unevenness"]["this"]


@pytest.mark.slow
def test_the_entry_point_answers_without_torch() -> None:
    script = (
        "import sys\nfrom windlass.parallel.__main__ import main\nmain(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules, 'the quick way is lost'"
    )
    args = ["cut", "--shape", SHAPE.model_dump_json(), "--layout", Layout(pp=2).model_dump_json()]
    done = subprocess.run([sys.executable, "-c", script, *args], check=True, capture_output=True, text=True)
    assert len(json.loads(done.stdout)["done"]["cut"]["pieces"]) == 2
