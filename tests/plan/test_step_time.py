"""What the time of a step depends on, and how."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.catalogue import device_named
from windlass.plan.cost.collectives import BASE_S, latency_s
from windlass.plan.cost.fitted_constants import (
    FittedConstants,
    StepConstants,
    format_known,
    parse_known,
    published,
)
from windlass.plan.cost.step_config import Attention, Device, Sizes, TrainingStep
from windlass.plan.cost.step_inputs import group, stacked, stage_layers, step_inputs
from windlass.plan.cost.step_time import MARGIN, ranked_s, step_parts, step_time

GPT = Sizes(
    layers=96, width=12288, heads=96, kv_heads=96, head_width=128, ffn_width=49152, gated=False,
    vocabulary=51200, tied=True,
)  # fmt: skip
MIXTURE = Sizes(
    layers=48, width=2048, heads=32, kv_heads=4, head_width=128, ffn_width=6144, gated=True,
    vocabulary=151936, tied=False, experts=128, top_k=8, expert_width=768,
)  # fmt: skip
A100 = device_named("A100-SXM4-80GB")
H100 = device_named("H100-SXM5")


def case(sizes: Sizes = GPT, **changed: object) -> TrainingStep:
    usual = TrainingStep(
        sizes=sizes, sequence=2048, global_batch=64, micro_batch=1, device=H100, devices=64, per_machine=8,
        tp=8, pp=8, dp=1,
    )  # fmt: skip
    return replace(usual, **changed)  # type: ignore[arg-type]


@st.composite
def cases(draw: st.DrawFn) -> TrainingStep:
    tp, pp, dp = (draw(st.sampled_from([1, 2, 4, 8])) for _ in range(3))
    sharding = draw(st.sampled_from(["none", "optimizer", "full"]))
    mixed = draw(st.booleans())
    return TrainingStep(
        sizes=MIXTURE if mixed else GPT,
        sequence=draw(st.sampled_from([1024, 8192])),
        global_batch=dp * draw(st.sampled_from([1, 4, 32])),
        micro_batch=1,
        device=draw(st.sampled_from([A100, H100])),
        devices=tp * pp * dp,
        per_machine=8,
        tp=tp,
        sequence_parallel=draw(st.booleans()),
        pp=pp,
        dp=dp,
        ep=dp if mixed else 1,
        sharding=sharding,
        shards=1 if sharding == "none" else dp,
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        attention=draw(st.sampled_from(["unfused", "fused-softmax", "flash", "flash3"])),
        software=draw(st.sampled_from(["", "megatron-2021", "nanotron-2024"])),
    )


@given(cases())
def test_parts_are_not_negative_and_add_up_to_the_step(one: TrainingStep) -> None:
    found = step_time(one)
    assert all(seconds >= -1e-9 * found.seconds for seconds in found.parts.values())
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert 0 < found.low <= found.seconds <= found.high


@given(st.lists(cases(), min_size=1, max_size=4))
def test_many_cases_at_once_are_predicted_as_each_alone(many: list[TrainingStep]) -> None:
    together = sum(step_parts(stacked(map(step_inputs, many)), StepConstants()).values())
    alone = [sum(step_parts(step_inputs(one), StepConstants()).values()) for one in many]
    assert list(together) == pytest.approx(alone)


@given(cases(), st.sampled_from(["memory_bytes_s", "link_bytes_s", "network_bytes_s"]))
def test_a_faster_device_takes_no_longer(one: TrainingStep, rate: str) -> None:
    faster = replace(one.device, **{rate: 2 * getattr(one.device, rate)})
    assert step_time(replace(one, device=faster)).seconds <= step_time(one).seconds * (1 + 1e-9)


@given(cases())
def test_recomputing_takes_longer(one: TrainingStep) -> None:
    none, full = (step_time(replace(one, recompute=policy)).seconds for policy in ("none", "full"))
    assert none < full


@given(cases(), st.booleans())
def test_what_software_hides_or_fuses_takes_no_longer(one: TrainingStep, fused: bool) -> None:
    plain = replace(one, overlaps_tensor=False, fused_loss=fused)
    better = replace(one, overlaps_tensor=True, fused_loss=True)
    assert step_time(better).seconds <= step_time(plain).seconds


def test_attention_made_for_hopper_gains_there_and_not_on_older_devices() -> None:
    def attention_s(device: Device, kernel: Attention) -> float:
        return step_time(case(device=device, attention=kernel)).parts["attention"]

    assert attention_s(H100, "flash3") < 0.7 * attention_s(H100, "flash")
    assert attention_s(A100, "flash3") == attention_s(A100, "flash")


def test_casts_leave_less_of_the_gain_of_eight_bits_to_narrow_models() -> None:
    def gain(width: int) -> float:
        sizes = replace(GPT, width=width, ffn_width=4 * width, heads=width // 128, kv_heads=width // 128)
        wide, narrow = (
            step_time(case(sizes, device=H100, tp=1, precision=precision)).parts["products"]
            for precision in ("bfloat16", "float8")
        )
        return wide / narrow

    assert 1 < gain(2048) < gain(16384) < 2.1


def test_weights_divided_within_machines_are_gathered_over_fast_links() -> None:
    everywhere = case(tp=1, pp=1, dp=64, sharding="full", shards=64)
    slow = replace(everywhere, device=replace(H100, network_bytes_s=H100.network_bytes_s / 8))
    far, near = step_time(slow).parts, step_time(replace(slow, shards=8)).parts
    assert near["weights gathered"] < far["weights gathered"] / 2
    assert far["gradient exchange"] == 0 < near["gradient exchange"]


def test_software_that_fuses_nothing_waits_longer_for_its_host() -> None:
    small = case(replace(GPT, width=1024, heads=16, kv_heads=16, head_width=64, ffn_width=4096), tp=1, pp=1)
    eager, fused = (
        step_time(replace(small, software=software), FittedConstants()).parts["host"]
        for software in ("fsdp-2023", "fsdp2-2025")
    )
    assert eager > 1.4 * fused > 0


def test_a_pipeline_is_chosen_only_where_it_promises_more_than_the_margin() -> None:
    plain, pipeline = case(pp=1, dp=8), case()
    assert ranked_s(plain, 1.0) < ranked_s(pipeline, 1.0 / (1 + 0.9 * MARGIN))
    assert ranked_s(plain, 1.0) > ranked_s(pipeline, 1.0 / (1 + 1.1 * MARGIN))


def test_megatron_sends_parts_of_what_a_pipeline_passes_on_and_deepspeed_all_of_it() -> None:
    megatron, deepspeed = (
        step_inputs(case(software=software)).send_spread
        for software in ("megatron-2021", "megatron-deepspeed-2022")
    )
    assert (megatron, deepspeed) == (case().tp, 1)


def test_sends_of_an_interleaved_pipeline_hide_where_the_software_sends_while_it_computes() -> None:
    def sends_s(software: str, virtual: int) -> float:
        one = case(software=software, virtual=virtual, sequence_parallel=True)
        return step_time(one, FittedConstants()).parts["pipeline sends"]

    assert sends_s("megatron-core-2025", 3) < 0.1 * sends_s("megatron-2021", 3)
    assert sends_s("megatron-core-2025", 1) == sends_s("megatron-2021", 1)


def test_fsdp_that_divides_gradients_gathers_each_layer_once_and_other_software_none() -> None:
    def parts(software: str, **changed: object) -> dict[str, float]:
        one = case(tp=1, pp=1, dp=64, shards=64, software=software, **changed)
        return step_time(one, FittedConstants()).parts

    gradients, full = (parts("fsdp2-2025", sharding=kind) for kind in ("gradients", "full"))
    assert 0 < gradients["weights gathered"] < full["weights gathered"]
    assert gradients["gradient exchange"] == full["gradient exchange"] == 0
    deepspeed = parts("megatron-deepspeed-2022", sharding="gradients")
    assert deepspeed["weights gathered"] == 0 < deepspeed["gradient exchange"]


def test_a_ring_takes_one_step_less_than_it_has_members() -> None:
    known = StepConstants(link_latency_s=1.0, network_latency_s=100.0)
    assert latency_s(known, group(1, 8)) == 0
    assert latency_s(known, group(8, 8)) == pytest.approx(BASE_S + 7)
    assert latency_s(known, group(64, 8)) == pytest.approx(BASE_S + 56 + 700)


def test_tensor_parallelism_across_machines_is_dear() -> None:
    within = case(tp=8, pp=8)
    across = case(tp=16, pp=4)
    assert step_time(across).seconds > 1.2 * step_time(within).seconds


def test_more_micro_batches_leave_a_smaller_share_idle() -> None:
    few, many = (step_time(case(global_batch=batch)) for batch in (8, 256))
    assert few.parts["pipeline idle"] / few.seconds > 0.3
    assert many.parts["pipeline idle"] / many.seconds < 0.05


def test_interleaving_divides_what_idles() -> None:
    plain, woven = step_time(case()), step_time(case(virtual=3))
    assert woven.parts["pipeline idle"] == pytest.approx(plain.parts["pipeline idle"] / 3)


def test_only_experts_that_a_token_meets_cost_products() -> None:
    usual = case(MIXTURE, tp=1, pp=1, dp=8, devices=8, ep=8)
    more = replace(usual, sizes=replace(MIXTURE, experts=256, top_k=8))
    assert step_time(more).parts["products"] < 1.3 * step_time(usual).parts["products"]


@pytest.mark.parametrize(
    ("software", "layers", "pp", "expected"),
    [
        ("megatron-2021", 96, 8, (12, 12)),
        ("megatron-deepspeed-2022", 70, 12, (6, 5)),
        ("", 96, 1, (96, 96)),
    ],
)
def test_layers_are_given_to_stages_as_the_software_does(
    software: str, layers: int, pp: int, expected: tuple[int, int]
) -> None:
    one = case(replace(GPT, layers=layers), pp=pp, software=software)
    assert stage_layers(one) == expected


def test_unmeasured_software_has_the_default_constants() -> None:
    known = published()
    assert known.constants("software of tomorrow") == known.default


def test_a_generation_that_was_left_out_is_taken_for_its_neighbour_or_the_default() -> None:
    alone = FittedConstants(StepConstants(), {"fsdp2-2025-eager": {"product": 0.5}})
    assert alone.constants("nanotron-2024") == alone.constants("fsdp2-2025-eager")
    assert FittedConstants().constants("nanotron-2024") == StepConstants()


def test_the_table_of_constants_reads_back_as_it_was_written() -> None:
    known = FittedConstants(StepConstants(product=0.5), {"some-2030": {"product": 1.25}}, 0.5, 2.0, ("here",))
    assert parse_known(tomllib.loads(format_known(known))) == known


@pytest.mark.parametrize(
    ("sizes", "devices", "pp", "virtual", "batch", "full", "measured_s"),
    [
        (GPT, 64, 8, 3, 64, True, 18.13),
        (GPT, 64, 8, 3, 64, False, 13.75),
        (replace(GPT, layers=128, width=25600, heads=160, kv_heads=160, head_width=160, ffn_width=102400),
         512, 64, 1, 512, True, 94.42),
    ],
)  # fmt: skip
def test_published_steps_of_megatron_are_met(
    sizes: Sizes, devices: int, pp: int, virtual: int, batch: int, full: bool, measured_s: float
) -> None:
    """Korthikanti et al. 2022 (arXiv:2205.05198), table 5."""
    one = case(
        sizes, device=A100, devices=devices, pp=pp, virtual=virtual, global_batch=batch,
        sequence_parallel=not full, recompute="full" if full else "selective", precision="float16",
        attention="fused-softmax", software="megatron-2021",
    )  # fmt: skip
    assert step_time(one).seconds == pytest.approx(measured_s, rel=0.12)


LLAMA = Sizes(
    layers=126, width=16384, heads=128, kv_heads=8, head_width=128, ffn_width=53248, gated=True,
    vocabulary=128256, tied=False,
)  # fmt: skip
NLG = replace(GPT, layers=105, width=20480, heads=128, kv_heads=128, head_width=160, ffn_width=81920)


@pytest.mark.parametrize(
    ("changed", "measured_s"),
    [
        # Llama 3 405B, arXiv:2407.21783, table 4: 430 and 400 TFLOP/s a device
        ({"sizes": LLAMA, "devices": 8192, "pp": 16, "dp": 64, "virtual": 8, "sequence": 8192,
          "global_batch": 2048}, 12.0),
        ({"sizes": LLAMA, "devices": 16384, "pp": 16, "dp": 128, "virtual": 8, "sequence": 8192,
          "global_batch": 2048}, 6.5),
        # 175 billion weights, MegaScale, arXiv:2402.15627, table 2
        ({"devices": 3072, "dp": 48, "virtual": 6, "global_batch": 6144, "device": A100}, 23.7),
        ({"devices": 12288, "dp": 192, "virtual": 6, "global_batch": 6144, "device": A100}, 6.34),
        # 530 billion weights, Megatron-Turing NLG, arXiv:2201.11990
        ({"sizes": NLG, "devices": 2240, "pp": 35, "dp": 8, "global_batch": 1920, "device": A100,
          "recompute": "full", "attention": "fused-softmax", "software": "megatron-deepspeed-2022"}, 60.1),
    ],
)  # fmt: skip
def test_large_runs_that_no_constant_was_fitted_to_lie_within_the_interval(
    changed: dict[str, object], measured_s: float
) -> None:
    usual = case(
        sequence_parallel=True, sharding="optimizer", attention="flash3", software="megatron-core-2025"
    )
    found = step_time(replace(usual, **changed))  # type: ignore[arg-type]
    assert found.low <= measured_s <= found.high
