"""Laws of memory, and figures of papers that were not used to make the formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.activations import cannot_run, layer_bytes, stages
from windlass.plan.cost.device_memory import device_memory, fits, stage_parts
from windlass.plan.cost.fitted_memory import PUBLISHED
from windlass.plan.cost.step_config import Device, Sharding, Sizes, TrainingStep

DEVICE = Device(
    name="a device",
    peak_flops={"bfloat16": 312e12},
    memory_bytes=80 * 2**30,
    memory_bytes_s=2e12,
    link_bytes_s=300e9,
    network_bytes_s=25e9,
)
GPT = Sizes(
    layers=48,
    width=6144,
    heads=64,
    kv_heads=64,
    head_width=96,
    ffn_width=4 * 6144,
    gated=False,
    vocabulary=51200,
    tied=True,
)
LLAMA = Sizes(
    layers=32,
    width=4096,
    heads=32,
    kv_heads=8,
    head_width=128,
    ffn_width=14336,
    gated=True,
    vocabulary=128256,
    tied=False,
)
EXPERTS = replace(LLAMA, experts=64, top_k=4, expert_width=2048, ffn_width=8192)


def step(sizes: Sizes = LLAMA, **changes: object) -> TrainingStep:
    case = TrainingStep(
        sizes=sizes,
        sequence=2048,
        global_batch=256,
        micro_batch=1,
        device=DEVICE,
        devices=64,
        per_machine=8,
    )
    return replace(case, **changes)  # type: ignore[arg-type]


def state_bytes(case: TrainingStep) -> float:
    parts = device_memory(case).parts
    return parts["weights"] + parts["gradients"] + parts["optimizer"]


@pytest.mark.parametrize(
    ("sharding", "gigabytes"), [("none", 120), ("optimizer", 31.4), ("gradients", 16.6), ("full", 1.9)]
)
def test_state_is_what_the_zero_paper_prints(sharding: Sharding, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5 billion weights, Adam in mixed precision, 64 devices."""
    sizes = replace(GPT, layers=22, width=5120, head_width=80, ffn_width=20480, vocabulary=112640)
    assert sizes.parameters == pytest.approx(7.5e9, rel=0.01)
    case = step(sizes, dp=64, sharding=sharding, shards=64, software="fsdp-2023")
    assert state_bytes(case) == pytest.approx(gigabytes * 1e9, rel=0.03)


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "per_width"), [(1, False, 32), (8, False, 8 + 24 / 8), (8, True, 32 / 8)]
)
def test_a_layer_keeps_what_korthikanti_counts(tp: int, sequence_parallel: bool, per_width: float) -> None:
    """Equations 1, 2 and 4 of arXiv:2205.05198, without the 2 bytes for masks of dropout."""
    case = step(GPT, tp=tp, sequence_parallel=sequence_parallel, attention="unfused")
    scores = 5 * GPT.heads * case.sequence / tp
    assert layer_bytes(case, PUBLISHED.habits("")) == pytest.approx(per_width * GPT.width + scores)


def test_the_parts_are_all_there_is() -> None:
    memory = device_memory(step())
    assert sum(memory.parts.values()) == pytest.approx(memory.bytes)
    assert memory.low < memory.bytes < memory.high
    assert set(memory.parts) == {
        "weights", "gradients", "optimizer", "activations", "logits", "buffers", "reserve",
    }  # fmt: skip


cases = st.builds(
    lambda sizes, tp, pp, micro, recompute, parallel, attention: step(
        sizes,
        tp=tp,
        pp=pp,
        micro_batch=micro,
        recompute=recompute,
        sequence_parallel=parallel,
        attention=attention,
    ),
    st.sampled_from([GPT, LLAMA, EXPERTS]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["none", "selective", "full"]),
    st.booleans(),
    st.sampled_from(["unfused", "fused-softmax", "flash"]),
)


@given(cases)
def test_a_larger_micro_batch_never_needs_less(case: TrainingStep) -> None:
    larger = replace(case, micro_batch=2 * case.micro_batch, global_batch=2 * case.global_batch)
    assert device_memory(larger).bytes > device_memory(case).bytes


@given(cases)
def test_recomputation_only_ever_saves(case: TrainingStep) -> None:
    needs = [device_memory(replace(case, recompute=policy)).parts for policy in ("none", "selective")]
    assert needs[0]["activations"] >= needs[1]["activations"]
    whole = replace(case, sizes=replace(case.sizes, layers=64), recompute="none")
    kept = device_memory(whole).parts["activations"]
    assert device_memory(replace(whole, recompute="full")).parts["activations"] < kept


@given(cases, st.sampled_from([2, 4, 8]))
def test_dividing_more_never_needs_more(case: TrainingStep, dp: int) -> None:
    order: list[Sharding] = ["none", "optimizer", "gradients"]
    needs = [device_memory(replace(case, dp=dp, sharding=kind, shards=dp)).bytes for kind in order]
    assert needs == sorted(needs, reverse=True)


def test_sequence_parallelism_divides_what_tensor_parallelism_leaves_whole() -> None:
    whole, divided = (step(tp=8, micro_batch=8, sequence_parallel=parallel) for parallel in (False, True))
    assert device_memory(divided).parts["activations"] < device_memory(whole).parts["activations"]


def test_the_first_stage_holds_a_micro_batch_for_every_stage() -> None:
    first, second, last = stages(step(pp=8), PUBLISHED.habits(""))
    assert (first.passes, second.passes, last.passes) == (8, 7, 1)


def test_no_stage_holds_more_than_there_are_micro_batches() -> None:
    first = stages(step(pp=8, global_batch=2), PUBLISHED.habits(""))[0]
    assert first.passes == 2


def test_chunks_hold_more_than_whole_stages() -> None:
    """Interleaving: one and (p - 1) / (p v) times as much (arXiv:2205.05198, section 4.2.3)."""
    plain, chunked = (stages(step(pp=8, virtual=v), PUBLISHED.habits(""))[0].passes for v in (1, 4))
    assert chunked == pytest.approx(plain * (1 + 7 / 32), rel=0.02)


def test_a_fully_sharded_stage_stays_gathered_as_long_as_it_has_micro_batches() -> None:
    case = step(dp=8, sharding="full", shards=8, software="fsdp2-2025")
    alone, staged = (device_memory(replace(case, pp=pp)).parts["buffers"] for pp in (1, 2))
    assert staged > (2 + 4) * LLAMA.parameters / 2 * 0.95
    assert alone < staged / 2


def test_a_large_vocabulary_makes_the_last_stage_the_fullest() -> None:
    case = step(replace(LLAMA, vocabulary=2_000_000), pp=4, micro_batch=8, sharding="optimizer", shards=64)
    parts = device_memory(case).parts
    assert parts["logits"] > parts["activations"]


def test_a_fused_loss_never_stores_logits_in_float32() -> None:
    plain, fused = (device_memory(step(fused_loss=fused)).parts["logits"] for fused in (False, True))
    assert fused < plain / 2


def test_stages_that_the_embeddings_fill_up_count_them_as_layers() -> None:
    first, second, last = stages(step(replace(LLAMA, layers=126), pp=8), PUBLISHED.habits(""))
    assert (first.layers, second.layers, last.layers) == (15, 16, 15)


def test_more_stages_than_layers_do_not_fit() -> None:
    case = step(replace(LLAMA, layers=4), pp=8)
    assert cannot_run(case, PUBLISHED.habits(""))
    assert not fits(case)


def test_greedy_stages_leave_the_last_ones_without_work() -> None:
    """nanotron gives stages a layer more than their share; 16 layers are gone before 16 stages are."""
    sizes = replace(
        LLAMA, layers=16, width=2048, kv_heads=32, head_width=64, ffn_width=8192, vocabulary=131072
    )
    case = step(sizes, pp=16, software="nanotron-2024")
    assert cannot_run(case, PUBLISHED.habits(case.software))
    assert not cannot_run(replace(case, pp=8), PUBLISHED.habits(case.software))


def test_nanotron_refuses_a_pipeline_with_few_micro_batches() -> None:
    case = step(pp=8, global_batch=4, software="nanotron-2024")
    assert not fits(case)
    assert fits(
        replace(case, software="megatron-core-2025", sharding="optimizer", shards=8, recompute="full")
    )


def test_experts_are_divided_along_their_own_axis() -> None:
    alone, divided = (step(EXPERTS, dp=8, ep=ep, shards=1) for ep in (1, 8))
    assert device_memory(divided).parts["weights"] < device_memory(alone).parts["weights"] / 3


def test_a_dense_layer_keeps_less_than_one_that_sends_tokens_to_experts() -> None:
    habits = PUBLISHED.habits("")
    same = replace(EXPERTS, experts=0, top_k=0, expert_width=0)
    assert layer_bytes(step(EXPERTS), habits) > layer_bytes(step(same), habits)


def test_what_fits_depends_on_the_device() -> None:
    case = step(dp=64, sharding="full", shards=64, recompute="full")
    assert fits(case)
    assert not fits(replace(case, device=replace(DEVICE, memory_bytes=8 * 2**30)))


def test_stated_float32_gradients_cost_four_bytes_more_where_the_software_keeps_its_own() -> None:
    case = step(GPT, tp=8, software="megatron-deepspeed-2022")
    weights = device_memory(case).parts["weights"] / 2
    more = device_memory(replace(case, gradient_bytes=4)).parts["gradients"]
    assert more - device_memory(case).parts["gradients"] == pytest.approx(4 * weights)


def test_float32_takes_sixteen_bytes_for_a_weight() -> None:
    case = step(LLAMA, precision="float32")
    assert state_bytes(case) == pytest.approx(16 * LLAMA.parameters)


def test_every_stage_can_be_requested() -> None:
    case = step(pp=4)
    every = [stage_parts(case, stage) for stage in stages(case, PUBLISHED.habits(""))]
    assert device_memory(case).bytes == pytest.approx(max(sum(parts.values()) for parts in every))
