"""Which layouts are generated: all that divide the work, and none that does not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.plan.cost.step_config import Sizes
from windlass.plan.fleet.layouts import cases, divisions
from windlass.plan.fleet.pools import DevicePool, pools_of
from windlass.plan.fleet.work import TrainingWork, parse_pins
from windlass.spec.errors import BadInput
from windlass.spec.fleet import fleet_of
from windlass.spec.sync import Sync

LARGE = Sizes(80, 8192, 64, 8, 128, 28672, True, 128256, False)
SMALL = Sizes(8, 512, 8, 8, 64, 2048, False, 1000, True)
EXPERTS = Sizes(16, 2048, 16, 16, 128, 8192, True, 32000, False, experts=64, top_k=2, expert_width=1024)


def pool(words: str) -> DevicePool:
    return pools_of(fleet_of(words))[0]


works = st.builds(
    TrainingWork,
    sizes=st.sampled_from([LARGE, SMALL, EXPERTS]),
    sequence=st.sampled_from([512, 4096, 32768]),
    global_batch=st.integers(1, 700),
    tokens=st.just(1e9),
)


@settings(max_examples=40, deadline=None)
@given(works, st.sampled_from([1, 3, 8, 12, 64, 100, 512]))
def test_every_layout_divides_devices_batch_layers_and_heads(work: TrainingWork, devices: int) -> None:
    for seen, case in enumerate(cases(work, pool(f"{devices}xH100"))):
        assert case.devices == case.dp * case.tp * case.pp * case.cp <= devices
        assert work.global_batch % (case.dp * case.micro_batch) == 0
        assert work.sizes.heads % case.tp == 0
        assert case.pp * case.virtual <= work.sizes.layers + 2
        assert case.virtual == 1 or case.micro_batches % case.pp == 0
        assert (case.dp * case.cp) % case.shards == 0
        assert not work.sizes.experts or (case.dp * case.cp) % case.ep == 0
        if seen > 300:
            break


def test_all_devices_are_used_where_the_batch_allows_it() -> None:
    work = TrainingWork(LARGE, 4096, 1024, 1e9)
    assert {division.devices for division in divisions(work, pool("512xH100"))} <= {
        512,
        320,
        400,
        480,
        500,
        508,
    }
    assert any(division.devices == 512 for division in divisions(work, pool("512xH100")))


def test_no_layout_is_reported_twice() -> None:
    seen = list(cases(TrainingWork(EXPERTS, 4096, 64, 1e9), pool("16xH100")))
    assert len(seen) == len(set(map(repr, seen)))


def test_tensor_parallelism_stays_within_the_fast_links() -> None:
    work = TrainingWork(LARGE, 4096, 1024, 1e9)
    assert max(division.tp for division in divisions(work, pool("512xH100"))) == 8
    assert max(division.tp for division in divisions(work, pool("512xGB200"))) == 64


def test_pins_leave_only_what_they_say() -> None:
    work = TrainingWork(LARGE, 4096, 1024, 1e9, pins=parse_pins("tp=8,recompute=full,micro_batch=2"))
    seen = {(case.tp, case.recompute_name, case.micro_batch) for case in cases(work, pool("64xH100"))}
    assert seen == {(8, "full", 2)}


def test_replicas_that_walk_apart_divide_nothing() -> None:
    work = TrainingWork(SMALL, 512, 64, 1e9, sync=Sync(policy="diloco"))
    assert {case.sharding for case in cases(work, pool("8xH100"))} == {"none"}


def test_a_device_computes_in_16_bits_as_it_can_by_default() -> None:
    work = TrainingWork(SMALL, 512, 64, 1e9)
    assert {case.precision for case in cases(work, pool("8xV100"))} == {"float16"}
    assert {case.precision for case in cases(work, pool("8xH100"))} == {"bfloat16"}
    both = replace(work, precisions=("bfloat16", "float8"))
    assert {case.precision for case in cases(both, pool("8xH100"))} == {"bfloat16", "float8"}
    assert not list(cases(both, pool("8xV100")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("recomputed=full", "did you mean 'recompute'"),
        ("tp=0", "at least 1"),
        ("recompute=ful", "did you mean 'full'"),
        ("tp", "axis"),
    ],
)
def test_pins_that_cannot_be_are_refused(text: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        parse_pins(text)
