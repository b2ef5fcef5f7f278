"""Figures of several processes, told as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.serve.metrics.metrics_registry import MetricsRegistry
from windlass.serve.metrics.multiprocess import ReadMetrics, fold, merge_registries
from windlass.serve.metrics.series import MAX_SERIES, OTHER, Figure, Totals

CHILD = """
import sys, time
from pathlib import Path
from windlass.serve.metrics.metrics_registry import MetricsRegistry
board = MetricsRegistry(Path(sys.argv[1]))
board.counter("windlass_done", "x").inc(3)
board.gauge("windlass_open", "x").set(5)
board.histogram("windlass_took_seconds", "x", (1.0, 2.0)).observe(1.5, 4)
print("counted", flush=True)
time.sleep(600)
"""


def figure(board: MetricsRegistry, name: str) -> float:
    lines = board.text().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " "))


def started(folder: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "counted\n"
    return child


def test_any_registry_reports_the_sum_of_all_and_a_killed_process_loses_no_count(tmp_path: Path) -> None:
    own = MetricsRegistry(tmp_path)
    own.counter("windlass_done", "x").inc(1)
    own.gauge("windlass_open", "x").set(2)
    with started(tmp_path) as child:
        assert (figure(own, "windlass_done_total"), figure(own, "windlass_open")) == (4, 7)
        os.kill(child.pid, signal.SIGKILL)
    assert (figure(own, "windlass_done_total"), figure(own, "windlass_open")) == (4, 2)
    assert figure(own, "windlass_took_seconds_count") == 4
    assert figure(own, 'windlass_took_seconds_bucket{le="1.0"}') == 0
    assert figure(own, 'windlass_took_seconds_bucket{le="2.0"}') == 4
    assert figure(own, "windlass_took_seconds_sum") == 6


def test_boards_of_ended_processes_are_folded_when_another_starts(tmp_path: Path) -> None:
    for _ in range(3):
        with started(tmp_path) as child:
            child.kill()
    own = MetricsRegistry(tmp_path)
    assert len(list(tmp_path.glob("*.series"))) == 1
    assert figure(own, "windlass_done_total") == 9
    fold(tmp_path)
    assert figure(own, "windlass_done_total") == 9


def test_a_fold_that_died_before_it_deleted_counts_nothing_twice(tmp_path: Path) -> None:
    with started(tmp_path) as child:
        child.kill()
    kept = {path: path.read_bytes() for path in tmp_path.glob("*.[sv]*")}
    fold(tmp_path)
    for path, content in kept.items():
        path.write_bytes(content)
    assert figure(MetricsRegistry(tmp_path), "windlass_done_total") == 3


def test_what_one_source_reports_to_every_gateway_is_counted_once(tmp_path: Path) -> None:
    registries = [MetricsRegistry(tmp_path, name) for name in ("a", "b")]
    for board, value in zip(registries, (4, 5), strict=True):
        board.gauges("windlass_running", "x", ("replica",), "max").labels("r1").set(value)
    assert figure(registries[0], 'windlass_running{replica="r1"}') == 5


def test_a_cleared_gauge_is_not_reported(tmp_path: Path) -> None:
    board = MetricsRegistry()
    gauges = board.gauges("windlass_running", "x", ("replica",))
    gauges.labels("r1").set(1)
    gauges.clear()
    assert b"r1" not in board.text()


def test_the_place_of_a_dropped_series_is_the_next_ones(tmp_path: Path) -> None:
    board, other = MetricsRegistry(tmp_path, "a"), MetricsRegistry(tmp_path, "b")
    gauges = board.gauges("windlass_running", "x", ("replica",))
    for number in range(3 * MAX_SERIES):
        gauges.labels(f"engine-{number}").set(number)
        gauges.drop(f"engine-{number}")
    gauges.labels("last").set(7)
    for reader in (board, other):
        lines = reader.text().decode().splitlines()
        assert [line for line in lines if line.startswith("windlass_running{")] == [
            'windlass_running{replica="last"} 7.0'
        ]


def test_label_values_beyond_the_bound_are_counted_as_other() -> None:
    board = MetricsRegistry()
    family = board.counters("windlass_used", "x", ("tenant",))
    for number in range(2 * MAX_SERIES):
        family.labels(f"t{number}").inc()
    lines = [line for line in board.text().decode().splitlines() if line.startswith("windlass_used_total{")]
    assert len(lines) == MAX_SERIES
    assert figure(board, f'windlass_used_total{{tenant="{OTHER}"}}') == MAX_SERIES + 1


def test_label_values_are_escaped() -> None:
    board = MetricsRegistry()
    board.counters("windlass_used", "x", ("tenant",)).labels('a"\n\\').inc()
    assert b'windlass_used_total{tenant="a\\"\\n\\\\"} 1.0' in board.text()


COUNT = Figure("windlass_done", "counter", "x", ("who",))
COUNTS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), max_size=3)


def totals_of(counts: dict[str, int]) -> Totals:
    return {(COUNT, (who,)): [float(count)] for who, count in counts.items()}


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), COUNTS), max_size=6))
def test_counters_of_live_and_ended_processes_add_up(registries: list[tuple[bool, dict[str, int]]]) -> None:
    merged = merge_registries(ReadMetrics(lives, totals_of(counts)) for lives, counts in registries)
    for who in "abc":
        wanted = sum(counts.get(who, 0) for _, counts in registries)
        assert merged.get((COUNT, (who,)), [0.0])[0] == wanted
