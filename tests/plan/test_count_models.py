"""What counting takes: n-grams by the growth of samples, iterations by the time given."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.corpus.growth import growth_of, sampled
from windlass.plan.count_models import Observed, plan_statistic
from windlass.plan.local.calibrate import calibrate, find_counted
from windlass.plan.local.hmm import hidden_cost
from windlass.plan.local.machine import SORT_S, MachineFacts
from windlass.plan.local.ngram import Growth, all_different, counting_cost, extrapolated, model_bytes
from windlass.plan.search import CorpusFacts
from windlass.spec.errors import BadInput, BadJob
from windlass.spec.job import Job
from windlass.spec.run import JOURNAL, RUN_FILE, Run
from windlass.spec.shape import HmmShape
from windlass.store.journal import Journal
from windlass.store.store_dir import StoreDir

MACHINE = MachineFacts(cores=2, memory_bytes=16 << 30, peak_flops=150e9, has_compiler=True)
CORPUS = CorpusFacts("corpus", "0", 4096, 2_000_000, 100_000)
counts = st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)).map(
    lambda grown: (grown[0], grown[0] + grown[1], grown[0] + grown[1] + grown[2])
)


class Part:
    """A text in memory."""

    def __init__(self, tokens: np.ndarray) -> None:
        self.array, self.tokens = tokens, len(tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.array[start:stop]


def job(family: str, **more: object) -> Job:
    return Job.model_validate({"model": {"family": family}, **more})


def zipf(tokens: int, seed: int = 0) -> Part:
    """Draw a text whose words are as unequal as those of real ones."""
    chances = 1 / np.arange(1, 4097)
    return Part(np.random.default_rng(seed).choice(4096, tokens, p=chances / chances.sum()))


def test_all_of_a_short_text_is_counted_and_nothing_is_left_to_guess() -> None:
    part = zipf(40_000)
    pieces = sampled(part)  # type: ignore[arg-type]
    grown = growth_of(pieces, (0, 0, 1))
    words = np.unique(np.concatenate(pieces))
    assert sum(map(len, pieces)) == pytest.approx(part.tokens, abs=8)
    assert grown[0][0][2] == len(words)
    pairs = {pair for piece in pieces for pair in zip(piece[:-1].tolist(), piece[1:].tolist(), strict=True)}
    assert grown[1][0][2] == len(pairs)
    assert all(kept[2] <= seen[2] for seen, kept in grown)


def test_a_sample_reports_how_many_ngrams_the_whole_text_has() -> None:
    part = zipf(1_600_000)
    pieces = sampled(part, 200_000)  # type: ignore[arg-type]
    (_, (pairs, _)) = growth_of(pieces, (0, 0))
    true = len(np.unique(part.array[:-1] * 4096 + part.array[1:]))
    assert extrapolated(pairs, 200_000, part.tokens) == pytest.approx(true, rel=0.15)


@given(counts, st.integers(1000, 10**6), st.floats(1, 1e3))
def test_more_text_never_has_fewer_ngrams(grown: tuple[int, int, int], sample: int, more: float) -> None:
    found = extrapolated(grown, sample, round(sample * more))
    assert grown[2] * 0.999 <= found
    assert found <= extrapolated(grown, sample, round(sample * more * 2)) * 1.001


def test_memory_is_bounded_and_time_grows_with_text_and_order() -> None:
    def cost(tokens: int, order: int, bound: int = 1 << 30) -> tuple[int, float]:
        found = counting_cost(
            all_different(tokens, order), tokens=tokens, held_out=1000, vocabulary=4096, bound=bound,
            workers=2, sort_s=SORT_S,
        )  # fmt: skip
        assert found.nodes[0] <= 4096
        assert sum(found.ngrams) <= sum(found.nodes) + 4096
        return found.memory_bytes - found.model_bytes, found.seconds

    assert cost(10**8, 5)[0] <= 1 << 30
    assert cost(10**6, 3)[1] < cost(10**7, 3)[1] < cost(10**7, 5)[1]


def test_the_bytes_of_a_model_are_those_of_its_format() -> None:
    """tinyshakespeare, 1024 tokens, order 3: 1,024 + 57,458 + 223,718 n-grams were 3.3 MB."""
    assert model_bytes((1024, 57458, 223718), 1024) == pytest.approx(3.28e6, rel=0.01)


def test_a_slow_sorter_counts_slowly_and_earlier_runs_correct_it() -> None:
    growth = Growth(1000, ((100, 150, 200), (300, 500, 900)), ((100, 150, 200), (300, 500, 900)))
    spec = job("ngram", model={"family": "ngram", "ngram": {"order": 2, "prune": []}})
    plain = plan_statistic(spec, CORPUS, MACHINE, Observed(growth))
    slow = plan_statistic(spec, CORPUS, MACHINE, Observed(growth, 2 * SORT_S))
    known = plan_statistic(spec, CORPUS, MACHINE, Observed(growth, correction=calibrate([1.5] * 20)))
    assert slow.predicted.seconds == pytest.approx(2 * plain.predicted.seconds)
    assert known.predicted.seconds == pytest.approx(1.5 * plain.predicted.seconds, rel=0.05)
    assert known.predicted.plain_s == plain.predicted.plain_s
    assert any("20 earlier ngram runs" in reason for reason in known.predicted.reasons)


def test_iterations_are_as_many_as_the_time_allows() -> None:
    def steps(**train: object) -> int:
        return plan_statistic(job("hmm", train=train), CORPUS, MACHINE).steps

    assert steps(steps=7) == 7
    assert steps(tokens=6_000_000) == 3
    assert 1 <= steps(time=30) < steps(time=300)
    run = plan_statistic(job("hmm", train={"time": 300}), CORPUS, MACHINE)
    assert run.predicted.seconds == pytest.approx(300, rel=0.15)


@pytest.mark.parametrize(("states", "number"), [(64, 4), (256, 4), (256, 8)])
def test_an_iteration_takes_its_products_at_least(states: int, number: int) -> None:
    shape = HmmShape(vocabulary=4096, context=128, states=states)
    cost = hidden_cost(
        shape, tokens=10**6, held_out=10**4, threads=2, number_bytes=number, peak_flops=150e9
    )  # fmt: skip
    assert cost.iteration_s >= 6 * states**2 * 10**6 / 150e9
    assert cost.memory_bytes > 8 * 4096 * states
    assert math.isclose(cost.tokens_per_s * cost.iteration_s, 10**6)


@pytest.mark.parametrize("key", ["steps", "tokens"])
def test_what_counting_has_no_use_for_is_refused(key: str) -> None:
    with pytest.raises(BadJob, match=f"{key} does not go with family 'ngram'"):
        plan_statistic(job("ngram", train={key: 100}), CORPUS, MACHINE)


def test_too_many_states_are_refused_with_what_would_help() -> None:
    huge = job("hmm", model={"family": "hmm", "hmm": {"states": 60000}})
    with pytest.raises(BadInput, match="memory") as caught:
        plan_statistic(huge, CORPUS, replace(MACHINE, memory_bytes=1 << 30))
    assert "states" in str(caught.value.hint)


def test_runs_of_a_home_report_how_far_predictions_were_off(tmp_path: Path) -> None:
    run = plan_statistic(job("hmm", train={"steps": 10}), CORPUS, MACHINE)
    plain = run.predicted.plain_s
    assert plain
    for number in range(12):
        _finished(tmp_path / "runs" / "j" / str(number), run, 2 * plain, steps=10)
    _finished(tmp_path / "runs" / "stopped" / "1", run, 50 * plain, steps=10, also="stopped")
    assert find_counted(tmp_path, "hmm").factor == pytest.approx(2.0, rel=0.05)
    assert find_counted(tmp_path, "ngram").runs == 0


def _finished(folder: Path, run: Run, seconds: float, *, steps: int, also: str = "") -> None:
    StoreDir(folder).write(RUN_FILE, run.model_dump_json().encode())
    journal = Journal(StoreDir(folder), JOURNAL)
    for event, at in (("started", 0.0), (also, 1.0), ("finished", seconds)):
        if event:
            journal.append({"event": event, "time": 100.0 + at, "step": steps})
