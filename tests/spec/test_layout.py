"""Layouts as text, and which of them are impossible."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.errors import AskedWrongly, BadInput
from windlass.spec.layout import Layout, Schedule, check_layout, parse_layout
from windlass.spec.shape import DecoderShape

SHAPE = DecoderShape(vocabulary=512, context=32, layers=8, width=64, heads=4, kv_heads=2, ffn_width=96)
degrees = st.integers(1, 8)


def test_what_is_not_said_stays() -> None:
    start = Layout(dp=2, recompute="full")
    assert parse_layout("tp=4", start) == Layout(dp=2, tp=4, recompute="full")


def test_lists_are_written_with_colons() -> None:
    assert parse_layout("pp=2,stages=5:3").stages == (5, 3)
    assert parse_layout("dp=2, shares=3:1").shares == (3, 1)


@given(pp=degrees, dp=degrees, sharded=degrees, cp=degrees, tp=degrees)
def test_a_layout_reads_back_what_it_says(pp: int, dp: int, sharded: int, cp: int, tp: int) -> None:
    layout = Layout(pp=pp, dp=dp, sharded=sharded, cp=cp, tp=tp)
    assert parse_layout("" if layout.world == 1 else str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("dp", "write it as axis=number"),
        ("pd=2", "unknown 'pd'"),
        ("dp=0", "dp"),
        ("dp=two", "dp"),
        ("pp=2,stages=5:x", "stages"),
        ("pp=2,stages=8:0", "stages"),
        ("pp=2,stages=8", "stages lists 1 numbers, but there are 2 stages"),
        ("pp=2,virtual=2", "has one stage a process"),
        ("pp=2,schedule=zbv", "needs virtual = 2"),
        ("pp=2,schedule=interleaved", "needs virtual of at least 2"),
        ("virtual=2,schedule=interleaved", "virtual stages need pp"),
        ("dp=2,shares=1:2:3", "shares lists 3 weights, but 2 replicas"),
        ("pp=2,sharded=2,schedule=asynchronous", "goes with pp, dp and tp only"),
    ],
)
def test_an_impossible_layout_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(AskedWrongly) as refused:
        parse_layout(text)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("text", "batch", "reason"),
    [
        ("pp=9", 16, "9 stages, but the model has only 8 layers"),
        ("pp=2,stages=4:5", 16, "stages hold 9 layers in all, the model 8"),
        ("tp=3", 16, "tp = 3 does not divide heads 4"),
        ("tp=4", 16, "tp = 4 does not divide kv_heads 2"),
        ("cp=3", 16, "context 32 is not a multiple of 6"),
        ("dp=3", 16, "is not a multiple of 3 replicas; give shares"),
        ("dp=3", 2, "3 replicas cannot divide a batch of 2"),
        ("dp=2,shares=2:1", 16, "cannot be divided by shares [2, 1]"),
        ("dp=2,pp=2,shares=3:1", 16, "shares do not go with a pipeline"),
        ("dp=2,micro_batches=3", 16, "8 sequences of a replica cannot be cut into 3"),
        ("pp=2,virtual=2,schedule=interleaved", 7, "wants a multiple of pp = 2 micro-batches, not 7"),
        ("pp=4,virtual=2,schedule=dualpipe-v", 4, "needs at least 8 micro-batches, not 4"),
    ],
)
def test_a_layout_that_a_model_or_batch_cannot_have_is_refused(text: str, batch: int, reason: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_layout(parse_layout(text), SHAPE, batch)
    assert reason in str(refused.value)


@given(st.integers(1, 8), st.sampled_from([("interleaved", 3), ("looped", 2), ("zbv", 2), ("dualpipe-v", 2)]))
def test_every_process_of_a_pipeline_has_as_many_stages(pp: int, schedule: tuple[Schedule, int]) -> None:
    layout = Layout(pp=pp + 1, schedule=schedule[0], virtual=schedule[1])
    positions = [layout.position_of(stage) for stage in range(layout.stage_count)]
    assert all(positions.count(position) == layout.virtual for position in range(layout.pp))
