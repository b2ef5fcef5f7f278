from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.step_config import Device, Sizes, TrainingStep
from windlass.plan.cost.storage import (
    activation_bytes,
    checkpoint_bytes,
    corpus_bytes,
    gradient_bytes,
    kept_checkpoints,
    served_bytes,
    storage,
    transfer_seconds,
)
from windlass.spec.errors import BadInput

DEVICE = Device("A100", {"bfloat16": 312e12}, 80e9, 2e12, 300e9, 25e9)
SIZES = Sizes(
    layers=32, width=4096, heads=32, kv_heads=8, head_width=128, ffn_width=14336, gated=True,
    vocabulary=128_256, tied=False,
)  # fmt: skip
CASE = TrainingStep(
    SIZES, sequence=8192, global_batch=64, micro_batch=1, device=DEVICE, devices=8, per_machine=8, dp=8
)


def test_a_checkpoint_of_bloom_has_the_size_that_its_makers_say() -> None:
    """bigscience, train/tr11-176B-ml/README.md: 2.3 TB with the optimizer, 329 GB without."""
    assert checkpoint_bytes(176.25e9, "bfloat16") / 2**40 == pytest.approx(2.3, rel=0.03)
    assert served_bytes(176.25e9) / 2**30 == pytest.approx(329, rel=0.01)


def test_float32_needs_no_second_copy_of_the_weights() -> None:
    assert checkpoint_bytes(100, "float32") == 1200


def test_half_of_the_weights_left_out_save_less_than_half_of_the_bytes() -> None:
    assert served_bytes(1e9, bits=16, zeros=0.5) == 1e9 + 1e9 / 8


def test_the_newest_and_one_of_every_so_many_stay() -> None:
    assert kept_checkpoints(1000, keep=3, every_steps=None) == 3
    assert kept_checkpoints(1000, keep=3, every_steps=250) == 7


def test_tokens_of_a_large_vocabulary_take_four_bytes() -> None:
    assert corpus_bytes(100, 65_536, text_bytes=0) == 200
    assert corpus_bytes(100, 65_537, text_bytes=0) == 400


def test_full_sharding_sends_three_times_the_weights_where_copies_send_two() -> None:
    """Rajbhandari et al. 2020, section 7."""
    sharded = replace(CASE, sharding="full", shards=8)
    assert gradient_bytes(sharded) == pytest.approx(1.5 * gradient_bytes(CASE))
    assert gradient_bytes(CASE) == pytest.approx(2 * SIZES.parameters * 2 * 7 / 8)


def test_one_device_sends_nothing() -> None:
    alone = replace(CASE, dp=1, devices=1)
    assert gradient_bytes(alone) + activation_bytes(alone) == 0


def test_a_wider_group_of_one_layer_sends_the_stream_four_times_around() -> None:
    divided = replace(CASE, dp=4, tp=2)
    stream = 8192 * 4096 * 2
    assert activation_bytes(divided) == pytest.approx(divided.micro_batches * 32 * 4 * 2 * stream / 2)


def test_a_pipeline_sends_the_stream_forth_and_back() -> None:
    piped = replace(CASE, dp=4, pp=2)
    assert activation_bytes(piped) == piped.micro_batches * 2 * 8192 * 4096 * 2


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_what_a_run_stores_and_sends_is_never_negative(tp: int, pp: int, cp: int) -> None:
    case = replace(CASE, tp=tp, pp=pp, cp=cp, dp=2)
    found = storage(case, tokens=1e9, steps=100, store_bytes_s=1e9)
    assert min(found.as_dict().values()) >= 0
    assert found.kept_bytes == 3 * found.checkpoint_bytes
    assert found.write_s == found.checkpoint_bytes / 1e9


def test_experts_send_tokens_to_and_fro_but_fewer_gradients() -> None:
    sparse = replace(SIZES, experts=8, top_k=2, expert_width=2048)
    near = replace(CASE, sizes=sparse)
    apart = replace(near, ep=8)
    assert activation_bytes(apart) > activation_bytes(near)
    assert gradient_bytes(apart) < gradient_bytes(near)


def test_a_store_that_takes_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="must be positive, got 0"):
        transfer_seconds(1, 0)
