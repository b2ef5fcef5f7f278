"""Contenders take turns, and a figure is our ratio to the best of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from windlass.lab.bench.bench_models import subject
from windlass.lab.bench.contenders import Peer, installed_peers
from windlass.lab.bench.limits import bandwidth_shares, prefill_flops
from windlass.lab.bench.serve import ServeBenchOptions, ServeCell, ServeRow, bench_serve, figures
from windlass.lab.bench.task import TaskSpeed
from windlass.spec.errors import BadInput, NotFound
from windlass.spec.protocol.progress import silent

DRIVERS = Path(__file__).parents[3] / "bench" / "drivers"
ECHO = """
import time
from conversation import converse

class Echo:
    version, setting = "1", "none"

    def __init__(self, job, model):
        pass

    def answer(self, requests, output, concurrency):
        for request in requests:
            request.sent_s = time.monotonic()
            for _ in range(output):
                time.sleep(0.001)
                request.came(request.prompt[0])

converse(Echo)
"""
REFUSES = """
from conversation import CannotError, converse

def load(job, model):
    raise CannotError("no such precision")

converse(load)
"""


def _pace(tokens_per_s: float, between_s: float = 0.1) -> TaskSpeed:
    return TaskSpeed(tokens_per_s, 1.0, 1.0, between_s, between_s)


def _row(name: str, tokens_per_s: float, ratio: float) -> ServeRow:
    return ServeRow(name, "", _pace(tokens_per_s), 0, ratio, 1.0)


def _peer(folder: Path, name: str, driver: str) -> None:
    """Make a peer as bench/peers does, with this Python and a driver of a few lines."""
    (folder / name / "bin").mkdir(parents=True)
    (folder / name / "bin" / "python").symlink_to(sys.executable)
    shutil.copytree(DRIVERS, folder / name / "drivers")
    (folder / name / "drivers" / "drive.py").write_text(driver)
    card = {"name": name, "driver": "drivers/drive.py", "precisions": ["float32"]}
    (folder / name / "peer.json").write_text(json.dumps(card))


def test_the_best_peer_is_the_one_that_leaves_us_the_lowest_ratio() -> None:
    rows = [_row("windlass", 100, 1.0), _row("slow", 50, 2.0), _row("quick", 125, 0.8)]
    assert figures([ServeCell("small", "int8", 8, rows)]) == {"small_int8_8": 0.8}


def test_a_cell_without_peers_has_no_ratio() -> None:
    assert figures([ServeCell("small", "float32", 8, [_row("windlass", 100, 1.0)])]) == {}


def test_more_requests_at_once_are_held_against_one() -> None:
    cells = [ServeCell("small", "float32", c, [_row("windlass", 100 * c**0.5, 1.0)]) for c in (1, 32)]
    assert figures(cells)["batch32_vs_1"] == pytest.approx(32**0.5)


def test_an_environment_without_its_card_is_no_peer(tmp_path: Path) -> None:
    _peer(tmp_path, "whole", ECHO)
    _peer(tmp_path, "half", ECHO)
    (tmp_path / "half" / "peer.json").unlink()
    assert [peer.name for peer in installed_peers(tmp_path)] == ["whole"]


def test_a_peer_that_is_not_installed_is_named_with_what_would_be_right(tmp_path: Path) -> None:
    _peer(tmp_path, "openvino", ECHO)
    with pytest.raises(NotFound, match="opemvino") as raised:
        installed_peers(tmp_path, ["opemvino"])
    assert raised.value.hint == "did you mean 'openvino'?"


@pytest.mark.parametrize(
    "asked",
    [
        ServeBenchOptions(models=("smal",)),
        ServeBenchOptions(precisions=("int9",)),
        ServeBenchOptions(output=1),
        ServeBenchOptions(models=("tiny",), prompt=500, output=500),
        ServeBenchOptions(concurrency=(0,)),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    asked: ServeBenchOptions, tmp_path: Path
) -> None:
    with pytest.raises(BadInput):
        bench_serve(asked, [], tmp_path, silent, lambda _: None)
    assert list(tmp_path.iterdir()) == []


def test_prefill_counts_scores_of_the_vocabulary_once() -> None:
    shape = subject("tiny")
    one = shape.forward_flops_per_token(1)
    assert prefill_flops(shape, 1) == one
    assert prefill_flops(shape, 100) < 100 * shape.forward_flops_per_token(100)


def test_bandwidth_is_the_weights_of_a_token_over_its_time() -> None:
    row = ServeRow("windlass", "", _pace(10.0, between_s=0.5), 0, 1.0, 1.0)
    weights = subject("base").matrix_parameters
    shares = bandwidth_shares([ServeCell("base", "int8", 1, [row])], read_bytes_per_s=4.0 * weights)
    assert shares == {"bandwidth_share_int8": pytest.approx(0.5)}


@pytest.mark.long
@pytest.mark.slow
def test_a_tiny_model_goes_through_the_whole_harness(tmp_path: Path) -> None:
    peers = tmp_path / "peers"
    _peer(peers, "echo", ECHO)
    _peer(peers, "refuses", REFUSES)
    asked = ServeBenchOptions(
        models=("tiny",), precisions=("float32",), concurrency=(1, 3), prompt=8, output=6, requests=4
    )
    said: list[str] = []
    cells = bench_serve(asked, installed_peers(peers), tmp_path, silent, said.append)
    assert [cell.name for cell in cells] == ["tiny_float32_1", "tiny_float32_3"]
    assert [row.contender for row in cells[0].rows] == ["windlass", "echo"]
    assert all(row.pace.tokens_per_s > 0 and row.peak_bytes > 1 << 20 for row in cells[1].rows)
    assert "no such precision" in said[0]


def test_a_peer_knows_which_precisions_it_has(tmp_path: Path) -> None:
    _peer(tmp_path, "echo", ECHO)
    assert installed_peers(tmp_path) == [Peer("echo", tmp_path / "echo", "drivers/drive.py", ["float32"])]


HOLDS = """
import sys
from pathlib import Path
from windlass.lab.bench.contenders import ContenderLoad, installed_peers, peer_process

folder = Path(sys.argv[1])
load = ContenderLoad(folder, "float32", 1, 1, 16, folder)
with peer_process(installed_peers(folder)[0], load, folder / "log") as peer:
    print(peer.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_bench_that_is_killed_leaves_no_peer_behind(tmp_path: Path) -> None:
    _peer(tmp_path, "echo", ECHO)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout is not None
        peer = psutil.Process(int(bench.stdout.readline()))
        bench.kill()
    assert psutil.wait_procs([peer], timeout=60)[1] == []
