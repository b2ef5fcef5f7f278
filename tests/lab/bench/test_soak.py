"""A soak counts what becomes of every request, and would notice a wrong one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.lab.bench.engine_process import BenchEngine
from windlass.lab.bench.soak import SoakCounts, SoakLap, answers_alone, soak, soak_figures
from windlass.lab.bench.traffic import SHAPE, draw_requests, write_soak_model
from windlass.spec.errors import BadInput
from windlass.spec.protocol.progress import silent


@given(seed=st.integers(0, 1 << 30))
def test_a_seed_draws_the_same_requests_and_all_of_them_fit(seed: int) -> None:
    requests = draw_requests(seed, 20)
    assert requests == draw_requests(seed, 20)
    assert len({request.id for request in requests}) == 20
    for request in requests:
        assert len(request.tokens) + request.max_tokens <= SHAPE.context
        assert max(request.tokens) < SHAPE.vocabulary


def test_memory_is_compared_from_the_end_of_the_warm_up() -> None:
    tally = SoakCounts(memory=[(10.0, 50), (30.0, 100), (60.0, 104), (100.0, 110)])
    assert soak_figures(tally, 100.0)["memory_growth"] == pytest.approx(0.1)


def test_a_soak_of_no_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="more than 0"):
        soak(0, tmp_path, silent)


@pytest.mark.long
@pytest.mark.slow
def test_a_short_soak_finds_nothing_wrong(tmp_path: Path) -> None:
    found = soak(0.05, tmp_path, silent, lap_s=1.5, requests=6)
    figures = found["figures"]
    assert figures["wrong_answers"] == figures["leaked_blocks"] == 0
    assert figures["finished"] > 0
    assert figures["requests"] == figures["finished"] + figures["cancelled"] + figures["refused"]


@pytest.mark.long
@pytest.mark.slow
def test_an_answer_that_differs_is_counted(tmp_path: Path) -> None:
    model, log = write_soak_model(tmp_path / "model"), tmp_path / "engine.log"
    requests = draw_requests(1, 3)
    expected = answers_alone(model, log, requests)
    forged = {name: [*tokens[:-1], (tokens[-1] + 1) % 256] for name, tokens in expected.items()}
    tally = SoakCounts()
    with BenchEngine(model, log) as engine:
        traffic = SoakLap(engine.client, tally, random.Random(1), requests, forged)
        traffic.drive(0.5)
    assert tally.counts["finished"] > 0
    assert len(tally.wrong) == tally.counts["finished"]
