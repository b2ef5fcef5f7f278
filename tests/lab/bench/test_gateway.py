"""The bench of the gateway: its mock engine, its figures, and one small run of it all."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.cluster.launch.local_process import LocalProcess
from windlass.http.json_body import parse
from windlass.lab.bench.engine_process import BenchConnection
from windlass.lab.bench.gateway import GatewayBenchOptions, Leg, bench_gateway, figures
from windlass.lab.bench.gateway_idle import IdleResult
from windlass.lab.bench.gateway_load import LoadRequest, LoadResult, read_outcome
from windlass.lab.bench.gateway_mock import TOKEN
from windlass.lab.bench.gateway_model import VOCABULARY
from windlass.serve.gateway.schemas.request_body import check
from windlass.serve.gateway.schemas.requests import ChatRequest
from windlass.spec.errors import BadInput, ProcessFailed
from windlass.spec.protocol.progress import silent
from windlass.spec.protocol.wire import Cancel, Generate, Ping, Pong, Tokens


@pytest.fixture
def mock(tmp_path: Path) -> Iterator[BenchConnection]:
    folder = Path(tempfile.mkdtemp(prefix="windlass-"))
    arguments = ["--socket", str(folder / "engine"), "--name", "m", "--vocabulary", str(VOCABULARY)]
    with LocalProcess("mock", "windlass.lab.bench.gateway_mock", arguments, tmp_path / "log") as process:
        next(event for event in process.events() if "listening" in event)
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(20)
            stream.connect(str(folder / "engine"))
            yield BenchConnection(stream)
    shutil.rmtree(folder)


def test_the_mock_engine_answers_a_seed_of_zero_at_once(mock: BenchConnection) -> None:
    mock.send(Generate("a", [1, 2], 5, seed=0))
    assert mock.receive()[0] == Tokens("a", [TOKEN] * 5, finish="length")


def test_the_mock_engine_advances_answers_of_one_pace_together(mock: BenchConnection) -> None:
    mock.send(Generate("a", [1], 3, seed=100), Generate("b", [1], 2, seed=100))
    heard = [mock.receive() for _ in range(5)]
    assert [message for message, _ in heard] == [
        Tokens("a", [TOKEN]),
        Tokens("b", [TOKEN]),
        Tokens("a", [TOKEN]),
        Tokens("b", [TOKEN], finish="length"),
        Tokens("a", [TOKEN], finish="length"),
    ]
    came_s = [at for _, at in heard]
    assert came_s[0] == came_s[1]
    assert came_s[2] == came_s[3]


def test_the_mock_engine_says_nothing_more_of_what_was_cancelled(mock: BenchConnection) -> None:
    mock.send(Generate("a", [1], 1000, seed=10), Cancel("a"), Generate("b", [1], 1, seed=5))
    assert mock.receive()[0] == Tokens("b", [TOKEN], finish="length")


def test_the_mock_engine_lives(mock: BenchConnection) -> None:
    mock.send(Ping(7))
    assert mock.receive()[0] == Pong(7, steps=0, running=0, waiting=0)


def test_what_the_client_sends_is_a_request_that_the_gateway_takes() -> None:
    body = LoadRequest(1, 1, tokens=16, stream=True, pace=50).body("mock", "hello")
    ask = check(ChatRequest, parse(body.encode()))
    assert (ask.max_tokens, ask.seed, ask.stream) == (16, 50, True)


def test_an_outcome_counts_good_answers_only() -> None:
    said = {"requests": 100, "duration_us": 2_000_000, "p50_us": 1000.0, "p99_us": 3000.0, "failed": 4}
    outcome = read_outcome(f"Running 2s test\n\n{json.dumps(said)}\n", 0.5, "http://x")
    assert (outcome.requests, outcome.requests_per_s, outcome.failed) == (96, 48.0, 4)


@pytest.mark.parametrize("failed", [6, 100])
def test_a_run_in_which_many_requests_fail_is_no_measurement(failed: int) -> None:
    said = {"requests": 100, "duration_us": 1, "p50_us": 1.0, "p99_us": 1.0, "failed": failed}
    with pytest.raises(ProcessFailed, match=f"{failed} of 100"):
        read_outcome(json.dumps(said), 0.5, "http://x")


def test_figures_are_ratios_within_rounds_and_the_median_of_them() -> None:
    legs = [
        Leg(name, order, _outcome(rate * speed))
        for speed in (1.0, 0.5, 2.0)
        for order in ("small", "streamed")
        for name, rate in (("ours", 400), ("bare", 800), ("litellm", 100))
    ]
    legs += [Leg(name, order, _outcome(100)) for order in ("moderate", "paced") for name in ("ours", "bare")]
    found = figures(GatewayBenchOptions(), legs, IdleResult(10, 1000))
    assert (found["vs_bare"], found["vs_litellm"], found["streamed_vs_bare"]) == (0.5, 4.0, 0.5)
    assert found["ours_streamed_tokens_per_s"] == 400 * GatewayBenchOptions().streamed.tokens
    assert found["overhead_p50_ms"] == 1.0
    assert found["idle_connections"] == 10
    assert "vs_canned" not in found


def test_senseless_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--rounds 0"):
        bench_gateway(GatewayBenchOptions(rounds=0), None, tmp_path, silent)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="the client of the bench, wrk, is not installed")
def test_a_small_bench_gives_all_figures(tmp_path: Path) -> None:
    result = bench_gateway(GatewayBenchOptions(1, 1, 2, 2, 50), None, tmp_path, silent)
    found = result["figures"]
    assert found["ours_requests_per_s"] > 0
    assert found["ours_streamed_tokens_per_s"] > 0
    assert found["idle_connections"] == 50
    assert {"vs_bare", "vs_canned", "overhead_p50_ms", "streamed_token_us"} <= found.keys()


def _outcome(requests_per_s: float) -> LoadResult:
    return LoadResult(int(requests_per_s * 10), 0, 10.0, 0.001, 0.002, 1.0)
