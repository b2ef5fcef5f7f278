from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.plan.local.calibrate import Correction, Experience
from windlass.plan.local.machine import MachineFacts
from windlass.plan.local.memory import held_bytes, local_memory
from windlass.plan.local.profile import DEEP, BlockTime, load_profile
from windlass.plan.local.step import StepShape, local_step
from windlass.plan.search import CorpusFacts, plan_run
from windlass.spec.job import Job
from windlass.spec.layout import Layout
from windlass.spec.shape import BertShape, DecoderShape

MADE_UP = load_profile(Path(__file__).with_name("profile-two-cores.json"))
"""Of a machine with two cores, made up from simple laws: no noise of a real one is in it."""
MACHINE = MachineFacts(cores=2, memory_bytes=8 << 30, peak_flops=1e11, has_compiler=False)
CORPUS = CorpusFacts(path="c", digest="d", vocabulary=4096, train_tokens=9_000_000, validation_tokens=400_000)
SHAPE = DecoderShape(
    vocabulary=4096, context=256, layers=6, width=256, heads=4, kv_heads=4, ffn_width=768, tied=True
)


def step(
    shape: object = SHAPE, *, batch: int = 8, micro: int = 4, threads: int = 2, **layout: object
) -> StepShape:
    return StepShape(shape, Layout.model_validate(layout), batch, micro, threads)  # type: ignore[arg-type]


def seconds(of: StepShape) -> float:
    return local_step(MADE_UP, of).seconds


def held(of: StepShape) -> int:
    return local_memory(MADE_UP, of).bytes


def test_parts_of_a_prediction_add_up_to_it() -> None:
    time, memory = local_step(MADE_UP, step(dp=2)), local_memory(MADE_UP, step(dp=2))
    assert sum(time.parts.values()) == pytest.approx(time.seconds)
    assert sum(memory.parts.values()) == pytest.approx(memory.bytes, abs=1)


def test_a_pass_that_was_measured_is_predicted_as_it_was() -> None:
    """Of one layer; what comes once a step is left out of the comparison by taking two depths."""
    alone = next(s for s in MADE_UP.settings if (s.processes, s.threads) == (1, 1))
    block = next(b for b in alone.blocks if b.width == 256)
    shape = SHAPE.model_copy(update={"ffn_width": block.ffn_width, "vocabulary": block.vocabulary})
    one, three = (
        local_step(
            MADE_UP,
            step(
                shape.model_copy(update={"layers": n}),
                batch=block.sequences,
                micro=block.sequences,
                threads=1,
            ),
        ).parts["passes"]
        for n in (1, 3)
    )
    assert (three - one) / 2 == pytest.approx(block.layer_s, rel=1e-6)


@pytest.mark.parametrize("axis", ["sharded", "tp"])
@pytest.mark.parametrize("micro", [1, 4])
def test_what_dividing_added_to_a_layer_is_added_whatever_the_layer_computes(axis: str, micro: int) -> None:
    def dearer(block: BlockTime) -> BlockTime:
        if block.division != axis:
            return block
        more = {"shallow_s": block.shallow_s + 0.2, "deep_s": block.deep_s + DEEP * 0.2}
        return block.model_copy(update=more)

    slow = tuple(s.model_copy(update={"blocks": tuple(map(dearer, s.blocks))}) for s in MADE_UP.settings)
    of = step(batch=2 * micro, micro=micro, **{axis: 2})
    added = local_step(MADE_UP.model_copy(update={"settings": slow}), of).seconds - seconds(of)
    assert added == pytest.approx(of.micro_batches * SHAPE.layers * 0.2, rel=0.3)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.sampled_from([64, 128, 256, 512]), st.sampled_from([1, 2, 4]))
def test_more_to_compute_never_takes_less_time_or_memory(layers: int, width: int, micro: int) -> None:
    small = SHAPE.model_copy(update={"layers": layers, "width": width, "ffn_width": 3 * width})
    more = [
        step(small.model_copy(update={"layers": layers + 1}), batch=micro, micro=micro),
        step(small, batch=2 * micro, micro=micro),
        step(small.model_copy(update={"vocabulary": 3 * 4096}), batch=micro, micro=micro),
    ]
    base = step(small, batch=micro, micro=micro)
    assert all(seconds(larger) > seconds(base) and held(larger) >= held(base) for larger in more)


@pytest.mark.parametrize("axis", ["dp", "sharded", "tp", "pp"])
def test_processes_with_more_than_one_to_a_core_take_turns(axis: str) -> None:
    two, four = (seconds(step(batch=8, micro=1, **{axis: n})) for n in (2, 4))
    assert four > 0.9 * two


def test_dividing_features_or_layers_holds_less_than_one_process_does() -> None:
    large = SHAPE.model_copy(
        update={"width": 1024, "ffn_width": 3072, "heads": 16, "kv_heads": 16, "layers": 12}
    )
    assert held(step(large, tp=2)) < held(step(large, micro=4))
    assert held(step(large, pp=2, batch=4, micro=1)) < held(step(large, batch=4, micro=1))


def test_the_more_processes_share_weights_the_less_each_holds_in_theory() -> None:
    bytes_of = [held_bytes(step(SHAPE, batch=8, micro=1, sharded=n)) for n in (1, 2, 4)]
    assert bytes_of == sorted(bytes_of, reverse=True)


def test_over_gloo_sharded_processes_hold_all_weights_at_the_end_of_a_pass() -> None:
    """As was measured: two processes that shared 28M weights held more than two that did not."""
    assert "waiting exchanges" in local_memory(MADE_UP, step(sharded=2)).parts
    assert local_memory(MADE_UP, step(dp=2)).parts["waiting exchanges"] == 0


def test_recomputing_trades_time_for_memory() -> None:
    kinds = [step(batch=16, micro=16, recompute=kind) for kind in ("none", "selective", "full")]
    times, memories = [seconds(k) for k in kinds], [held(k) for k in kinds]
    assert times == sorted(times)
    assert memories == sorted(memories, reverse=True)
    assert times[0] < times[-1]
    assert memories[0] > memories[-1]


def test_replicas_that_meet_seldom_exchange_less() -> None:
    often, seldom = step(dp=2), replace(step(dp=2), every=50)
    parts = [local_step(MADE_UP, s).parts["exchange"] for s in (often, seldom)]
    assert parts[0] == pytest.approx(50 * parts[1])


@pytest.mark.parametrize(
    "shape",
    [
        DecoderShape(
            family="gpt2", vocabulary=4096, context=128, layers=4, width=128, heads=4, ffn_width=512
        ),
        BertShape(vocabulary=4096, context=128, layers=4, width=128, heads=4, ffn_width=512),
    ],
)
def test_every_family_can_be_predicted(shape: DecoderShape | BertShape) -> None:
    assert seconds(step(shape)) > 0
    assert held(step(shape)) > 0


def test_a_plan_with_a_profile_predicts_from_it_and_says_so() -> None:
    job = Job.model_validate({"model": {"width": 256, "layers": 6}, "train": {"steps": 10}})
    plain = plan_run(job, CORPUS, MACHINE, experience=Experience(MADE_UP))
    slower = plan_run(job, CORPUS, MACHINE, experience=Experience(MADE_UP, Correction(1.5, 0.1, 7)))
    assert slower.predicted.seconds == pytest.approx(1.5 * plain.predicted.seconds)
    assert any("profile" in reason for reason in plain.predicted.reasons)
    assert any("1.50 after 7 runs" in reason for reason in slower.predicted.reasons)


def test_what_was_not_measured_is_not_predicted_from_the_profile() -> None:
    job = {"model": {"width": 256, "layers": 6}, "train": {"steps": 10}, "machine": {"precision": "bfloat16"}}
    run = plan_run(Job.model_validate(job), CORPUS, MACHINE, experience=Experience(MADE_UP))
    assert not any("profile" in reason for reason in run.predicted.reasons)
