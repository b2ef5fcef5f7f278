"""The proof itself: what it measures, and a small run of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from windlass.lab.proofs.failover.engine_faults import FaultySocket
from windlass.lab.proofs.failover.failover_proof import (
    FailoverCounts,
    Fault,
    figures,
    prove_failover,
    quantile,
)
from windlass.lab.proofs.failover.requests import ANSWERING, TEXT, StreamRequest
from windlass.lab.proofs.failover.stream_reader import StreamContent

ASK = StreamRequest("it", TEXT, {})


def heard(
    text: str, *, trouble: str = "", began: float = 0.0, ended: float = 9.0, pause: float = 0.1
) -> StreamContent:
    return StreamContent({0: text}, trouble=trouble, began=began, ended=ended, pause_s=pause)


def test_an_answer_counts_once_as_broken_or_as_different() -> None:
    tally = FailoverCounts({"it": heard("the same")})
    for each in (heard("the same"), heard("the other"), heard("the s", trouble="cut off")):
        tally.add(ASK, each)
    assert (len(tally.answers), tally.broken, tally.different) == (3, 1, 1)
    assert "character 4 of 8" in tally.wrong[0]


def test_only_answers_under_way_at_a_fault_count_for_the_gap_and_only_beyond_the_usual() -> None:
    tally = FailoverCounts({"it": heard("x")})
    tally.add(ASK, heard("x", began=0.0, ended=4.0, pause=1.5))
    tally.add(ASK, heard("x", began=5.0, ended=9.0, pause=7.0))
    found = figures(tally, [(ASK, heard("x", pause=0.5))], [Fault("kill", "engine-1", 2.0)])
    assert (found["streams"], found["streams_struck"], found["faults_kill"]) == (2, 1, 1)
    assert found["gap_p99_s"] == found["max_gap_s"] == 1.0


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([], 0.5) == 0.0
    assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert quantile([1.0, 2.0, 3.0], 0.99) == 3.0


def test_scores_of_both_routes_are_gathered_over_chunks() -> None:
    one = StreamContent()
    columns = {"tokens": ["a"], "token_logprobs": [-1.0], "text_offset": [0], "top_logprobs": None}
    one.take({"choices": [{"index": 0, "text": "a", "logprobs": columns, "finish_reason": None}]})
    one.take({"choices": [{"index": 0, "text": "b", "logprobs": None, "finish_reason": "stop"}]})
    assert (one.texts, one.scores, one.finishes) == ({0: "ab"}, {0: [["a", -1.0, 0, None]]}, {0: "stop"})


def test_the_fault_proxy_forwards_everything_until_it_cuts_a_frame(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = Path(tmp_path_factory.mktemp("d"))
    behind = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    behind.bind(str(folder / "b"))
    behind.listen()
    door = FaultySocket(folder / "d", folder / "b")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as near:
        near.settimeout(20)
        near.connect(str(door.path))
        far, _ = behind.accept()
        near.sendall(b"asked")
        assert far.recv(5) == b"asked"
        far.sendall(b"whole")
        assert near.recv(5, socket.MSG_WAITALL) == b"whole"
        door.tear()
        far.sendall(b"torn apart")
        rest = b"".join(iter(lambda: near.recv(100), b""))
        assert 0 < len(rest) < len(b"torn apart")
        assert b"torn apart".startswith(rest)
        far.close()
    door.close()
    behind.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", ANSWERING)
def test_streams_continue_byte_for_byte_whatever_befalls_their_engines(family: str, tmp_path: Path) -> None:
    result = prove_failover(3, lambda _: None, replicas=2, logs=tmp_path, family=family)
    found = result["figures"]
    assert result["wrong"] == []
    assert (found["faults_kill"], found["faults_freeze"], found["faults_tear"]) == (1, 1, 1)
    assert found["streams_struck"] >= 3
