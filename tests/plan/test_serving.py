"""What serving costs, by the formulas."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.lab.planner.serving_validation import judge
from windlass.plan.cost.catalogue import device_named
from windlass.plan.cost.models import model_named, model_of
from windlass.plan.serving.fitted_constants import Reach, middle, published, reach_of, spread, text_of
from windlass.plan.serving.search import TrafficSpec, cheapest, serving_options
from windlass.plan.serving.times import FORMATS, ModelReplica, decode_pass, latency, prefill_pass
from windlass.spec.errors import BadInput, NotFound

ROWS = Path(__file__).resolve().parents[3] / "shared" / "planner" / "serving_rows.csv"
H100 = device_named("H100-SXM5")
LLAMA = model_named("Llama-3.1-70B")
DEEPSEEK = model_named("DeepSeek-V3")
REACH = reach_of("vllm")
tps = st.sampled_from([1, 2, 4, 8])
crowds = st.integers(1, 512)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Llama-3.1-8B", 8.0), ("Llama-3.1-70B", 70.6), ("Qwen3-32B", 32.8), ("DeepSeek-V3", 671),
     ("Kimi-K2", 1026),
     ("gpt-oss-120b", 116.8), ("MiniMax-M2", 229), ("Qwen3-235B-A22B", 235), ("Llama-3.1-405B", 405.9)],
)  # fmt: skip
def test_sizes_of_published_models_give_their_published_number_of_weights(name: str, billions: float) -> None:
    assert model_named(name).sizes.parameters == pytest.approx(billions * 1e9, rel=0.01)


def test_a_model_may_be_named_by_its_sizes() -> None:
    assert model_of("layers=2,width=64,heads=4").sizes.head_width == 16


@pytest.mark.parametrize(
    "text", ["layers=2,width=64", "layers=2,width=0,heads=4", "layers=2,witdh=8,heads=1", "lama"]
)
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(NotFound):
        model_of(text)


def test_weights_on_all_devices_together_are_those_of_the_model() -> None:
    replica = ModelReplica(LLAMA, H100, "bfloat16", tp=8)
    assert 8 * replica.weight_bytes_each == pytest.approx(2 * LLAMA.sizes.parameters, rel=0.01)


def test_a_step_reads_every_weight_once_for_one_request() -> None:
    replica = ModelReplica(LLAMA, H100, "bfloat16")
    read = decode_pass(replica, 1, 0).read_s * H100.memory_bytes_s
    assert read == pytest.approx(
        2 * (LLAMA.sizes.parameters - LLAMA.sizes.vocabulary * LLAMA.sizes.width), rel=0.01
    )


def test_prefill_takes_two_operations_a_weight_and_token() -> None:
    replica = ModelReplica(LLAMA, H100)
    flops = prefill_pass(replica, 1).compute_s * H100.peak_flops["bfloat16"]
    assert flops == pytest.approx(2 * LLAMA.sizes.parameters, rel=0.02)


@given(st.integers(1, 4096))
def test_a_batch_meets_no_more_experts_than_there_are_and_no_fewer_than_one_token_does(tokens: int) -> None:
    replica = ModelReplica(DEEPSEEK, H100, "float8")
    one, all_of_them = replica.expert_bytes(1), replica.expert_bytes(math.inf)
    assert one == pytest.approx(all_of_them * 8 / 256)
    assert one * (1 - 1e-9) <= replica.expert_bytes(tokens) <= all_of_them


def test_latent_attention_keeps_the_same_on_every_device_of_a_group() -> None:
    halves = [ModelReplica(DEEPSEEK, H100, tp=tp).token_cache_bytes for tp in (1, 8)]
    assert halves[0] == halves[1] == 2 * 61 * (512 + 64)


def test_heads_are_divided_no_further_than_there_are_heads() -> None:
    each = [ModelReplica(LLAMA, replace(H100, domain=16), tp=tp).token_cache_bytes for tp in (1, 8, 16)]
    assert each[0] == 8 * each[1]
    assert each[1] == each[2]


def test_windowed_layers_look_back_on_their_window_only() -> None:
    assert model_named("gpt-oss-120b").seen(1128) == (1128 + 128) / 2


@given(tps, crowds, st.integers(1, 8192), st.integers(2, 2048))
def test_more_requests_at_a_time_never_make_a_request_quicker(
    tp: int, crowd: int, given_: int, output: int
) -> None:
    replica = ModelReplica(LLAMA, H100, "float8", tp=tp)
    one, more = (latency(replica, given_, output, n, REACH) for n in (crowd, crowd + 1))
    assert more.first_s >= one.first_s * (1 - 1e-9)
    assert more.token_s >= one.token_s * (1 - 1e-9)


@given(st.sampled_from(FORMATS))
def test_smaller_weights_leave_more_room(weights: str) -> None:
    room = {name: ModelReplica(LLAMA, H100, name, 1.0, tp=4).room(4096) for name in FORMATS}
    assert room[weights] >= room["bfloat16"]


def test_an_engine_that_was_not_measured_is_the_middle_of_those_that_were() -> None:
    assert reach_of("windlass") == middle(published())


def test_constants_come_back_from_their_text() -> None:
    written = tomllib.loads(text_of(published(), spread()))
    assert {name: Reach(**entry) for name, entry in written["engines"].items()} == published()
    assert tuple(written["interval"]["token"]) == spread().token


@given(st.floats(0.1, 200))
def test_replicas_that_are_offered_can_take_the_traffic_within_the_targets(rate: float) -> None:
    traffic = TrafficSpec(1024, 256, rate=rate, first_s=0.8, token_s=0.05)
    for one in serving_options(LLAMA, H100, "float8", traffic, REACH)[:3]:
        assert one.latency.first_s <= traffic.first_s
        assert one.latency.token_s <= traffic.token_s
        assert one.replicas * one.batch / one.latency.request_s(traffic.output) >= rate


def test_no_other_layout_that_meets_the_targets_needs_fewer_devices() -> None:
    options = serving_options(LLAMA, H100, "float8", TrafficSpec(1024, 256, concurrency=64), REACH)
    assert options[0].devices == min(one.devices for one in options)


def test_of_several_devices_the_cheapest_is_first_and_those_that_cannot_are_passed_over() -> None:
    devices = [device_named(name) for name in ("L4", "H200-SXM", "H100-SXM5")]
    options = cheapest(
        LLAMA, devices, "bfloat16", TrafficSpec(1024, 256, rate=5, token_s=0.05), REACH, max_devices=8
    )
    assert options[0].dollars_h == min(one.dollars_h for one in options if one.dollars_h is not None)
    assert {one.replica.device.name for one in options} == {"H100-SXM5", "H200-SXM"}


def test_a_model_that_does_not_fit_is_reported_with_what_it_needs() -> None:
    with pytest.raises(BadInput, match="does not fit on L4"):
        serving_options(DEEPSEEK, device_named("L4"), "float8", TrafficSpec(100, 10, rate=1), REACH)


def test_a_target_that_no_layout_meets_is_reported_with_the_quickest() -> None:
    with pytest.raises(BadInput, match="the first token within 10 ms") as caught:
        serving_options(LLAMA, H100, "float8", TrafficSpec(8192, 10, rate=1, first_s=0.01), REACH)
    assert "--ttft" in str(caught.value)


@pytest.mark.slow
def test_tokens_on_unseen_systems_are_predicted_to_within_a_fifth_and_the_interval_holds_what_it_says() -> (
    None
):
    if not ROWS.exists():
        pytest.skip("needs planner/serving_rows.csv of the shared data, which is not on this machine")
    judged = judge(ROWS)
    errors = judged.errors
    assert errors["system"]["all"]["rows"] > 1200
    assert errors["system"]["all"]["tpot_median"] < 0.2
    assert errors["model"]["all"]["tpot_median"] < 0.2
    assert min(judged.coverage.values()) >= 0.8


def test_a_file_with_other_columns_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="has no column 'model'"):
        judge(tmp_path / "rows.csv")
