"""The Java SDK, compiled with the JDK at hand, against the real gateway and a world that breaks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass import __version__
from windlass.serve.records.state import open_state
from windlass.spec.protocol.wire import Cancel, Generate
from windlass.store.database import sqlite_url

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
JAVA = ROOT / "java"
PAGE = ROOT / "docs" / "sdk-java.md"
LAZY = "the lazy dog" * 3
PATIENCE_S = 60.0
QUICK = ["-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"]

Tell = Callable[..., dict[str, Any]]


def after_events(count: int) -> Callable[[bytes], int | None]:
    """Cut in the middle of the event that follows so many."""

    def cut(heard: bytes) -> int | None:
        place = -1
        for _ in range(count + 1):
            place = heard.find(b"data: {", place + 1)
            if place < 0:
                return None
        return place + 12

    return cut


def lost_answer(heard: bytes) -> int | None:
    """Let the list of models through, and nothing of the answer that follows on the same connection."""
    return heard.rfind(b"HTTP/1.1 200") if b"text_completion" in heard else None


def cancelled(heard: list[Any]) -> int:
    return sum(isinstance(message, Cancel) for message in heard)


def generated(heard: list[Any]) -> int:
    return sum(isinstance(message, Generate) for message in heard)


@pytest.fixture
def free_port() -> int:
    """Return a port below those that outgoing connections are given: none of them takes it meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def test_it_compiles_without_a_warning_and_its_own_checks_pass(jdk: Any) -> None:
    assert re.search(r"^[1-9]\d+ passed, 0 failed$", jdk.report, re.MULTILINE)
    assert (jdk.out / "windlass.jar").is_file()


def test_everything_public_is_described(jdk: Any, tmp_path: Path) -> None:
    sources = ["-sourcepath", JAVA / "src" / "main" / "java", "-subpackages", "dev.windlass"]
    written = subprocess.run(
        ["javadoc", *QUICK, "-quiet", "-Xdoclint:all", "-Werror", "-notimestamp", "-d", tmp_path, *sources],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert written.returncode == 0, written.stderr + written.stdout


def test_the_versions_agree() -> None:
    assert f"<version>{__version__}</version>" in (JAVA / "pom.xml").read_text()
    transport = JAVA / "src" / "main" / "java" / "dev" / "windlass" / "Transport.java"
    assert f'"windlass-java/{__version__}"' in transport.read_text()


def test_every_call_is_answered(tell: Tell, gateway: Any) -> None:
    told = tell("calls", gateway.url)
    assert told["models"] == ["tiny@3"]
    assert told["complete"] == ["the lazy dog", "length", "tiny@3", 6]
    assert told["several"] == [2, 2]
    assert told["embed"] == [8, 8]
    assert told["tokenize"] == [3, ["the", " lazy", " dog"], 128]
    assert told["turns"] > 2
    assert told["detokenize"] == "the lazy dog"
    assert told["fits"] == [True, 3, 9]
    assert told["large"] == [False, "context_length_exceeded", "max_tokens"]


def test_calls_without_a_waiter_run_concurrently(tell: Tell, gateway: Any) -> None:
    told = tell("later", gateway.url)
    assert told == {
        "later": ["thethe", " lazy lazy", " dog dog", " fox fox"],
        "wrong": "temperature",
        "vectors": 1,
        "turn": "length",
    }


def test_a_streamed_text_is_the_same_in_pieces(tell: Tell, gateway: Any, engine: Any) -> None:
    told = tell("stream", gateway.url)
    assert len(told["pieces"]) == 9
    assert "".join(told["pieces"]) == told["text"] == LAZY
    assert told["end"] == [0, 9, "tiny@3"]
    assert told["chat"] == 3
    assert all(asked.seed < 2**31 for asked in engine.of(Generate))


def test_a_subscriber_gets_piece_by_piece_what_it_asks_for(tell: Tell, gateway: Any) -> None:
    assert tell("published", gateway.url) == {"ended": True, "published": LAZY}


def test_leaving_a_stream_stops_the_servers_work(begin: Any, gateway: Any, engine: Any) -> None:
    engine.held = {2}
    story = begin("leaving", gateway.url)
    story.wait()
    engine.wait_for(lambda heard: cancelled(heard) == 1)
    story.go_on()
    assert story.end() == {"first": "the", "left": True}


def test_cancelling_a_future_stops_the_servers_work(begin: Any, gateway: Any, engine: Any) -> None:
    engine.held = {2}
    story = begin("cancelling", gateway.url)
    story.wait()
    engine.wait_for(lambda heard: generated(heard) == 1)
    story.go_on()
    engine.wait_for(lambda heard: cancelled(heard) == 1)
    story.wait()
    story.go_on()
    assert story.end()["cancelled"] is True


def test_closing_the_client_ends_what_is_under_way(begin: Any, gateway: Any, engine: Any) -> None:
    engine.held = {2}
    story = begin("closing", gateway.url)
    story.wait()
    engine.wait_for(lambda heard: generated(heard) == 2)
    story.go_on()
    told = story.end()
    assert told == {"ended": ["StoppedException", "StoppedException"], "closed": "the client is closed"}


def test_a_key_opens_a_guarded_service_and_a_missing_one_is_explained(
    tell: Tell, guarded: Any, given_keys: Any
) -> None:
    status, code, message, page = tell("refused", guarded.url)["refused"]
    assert (status, code, page) == (401, "unauthorized", f"{guarded.url}/errors/unauthorized")
    assert "WINDLASS_KEY" in message
    assert tell("twice", guarded.url, key=given_keys.tokens["user"])["second"] == LAZY


def test_a_refused_key_is_in_no_message(tell: Tell, guarded: Any) -> None:
    told = tell("refused", guarded.url, key="wlk_no-such-key")
    assert told["refused"][1] == "unauthorized"
    assert told["id"]
    assert "no-such-key" not in json.dumps(told)


def test_a_server_that_is_not_there_is_reported(tell: Tell, free_port: int) -> None:
    told = tell("refused", f"http://127.0.0.1:{free_port}")
    assert "cannot be reached" in told["unreachable"]


def test_a_torn_stream_continues_at_the_same_character(
    tell: Tell, gateway: Any, engine: Any, break_way: Any
) -> None:
    way = break_way(gateway.url, after_events(3), after_events(5))
    told = tell("stream", way.url)
    assert told["text"] == "".join(told["pieces"]) == LAZY
    assert told["end"] == [2, 9, "tiny@3"]
    seeds = [asked.seed for asked in engine.of(Generate) if len(asked.tokens) == 3]
    assert len(seeds) == 3
    assert len(set(seeds)) == 1


def test_another_text_than_before_is_never_joined_to_what_was_shown(
    tell: Tell, gateway: Any, engine: Any, break_way: Any
) -> None:
    way = break_way(gateway.url, after_events(3))
    engine.writes = lambda ask: ask.tokens * 3 if len(engine.of(Generate)) == 1 else ask.tokens[::-1] * 3
    assert tell("stream", way.url) == {"broken": "the lazy dog"}


def test_a_lost_answer_is_not_computed_twice(
    tell: Tell, start_gateway: Any, engine: Any, break_way: Any, tmp_path: Path
) -> None:
    gateway = start_gateway()
    gateway.service.database = open_state(sqlite_url(tmp_path / "service.db"))
    gateway.wait_until("/readyz", 200)
    way = break_way(gateway.url, lost_answer)
    assert tell("twice", way.url) == {"first": LAZY, "second": LAZY}
    assert generated(engine.received) == 2
    assert way.connections == 2


def test_where_one_site_is_gone_the_other_answers(tell: Tell, gateway: Any, free_port: int) -> None:
    told = tell("stream", f"http://127.0.0.1:{free_port}", gateway.url)
    assert told["text"] == LAZY
    assert told["end"][0] == 0


def test_a_stream_continues_at_another_site(
    tell: Tell, gateway: Any, start_gateway: Any, engine: Any, break_way: Any
) -> None:
    other = start_gateway()
    other.wait_until("/readyz", 200)
    way = break_way(gateway.url, after_events(4), then_closed=True)
    told = tell("stream", way.url, other.url)
    assert told["text"] == "".join(told["pieces"]) == LAZY
    assert told["end"] == [1, 9, "tiny@3"]


def test_a_deadline_covers_everything_and_the_server_gets_it(tell: Tell, gateway: Any, engine: Any) -> None:
    engine.held = {2}
    told = tell("late", gateway.url)
    assert told == dict.fromkeys(("late", "slow"), "the answer was not complete within 2 s")
    engine.wait_for(lambda heard: cancelled(heard) == 2)


@pytest.fixture
def limited(model_dir: Path, socket_path: Path, tmp_path: Path, engine: Any) -> Iterator[str]:
    """A gateway process that lets one request a second in."""
    settings = tmp_path / "settings.json"
    limits = {"all": {"requests_per_second": 1, "burst": 1}}
    settings.write_text(json.dumps({"port": 0, "open": True, "limits": limits}))
    command = [sys.executable, "-m", "windlass.serve.gateway", "--model", str(model_dir), "--name", "tiny@3"]
    command += ["--socket", str(socket_path), "--settings", str(settings)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["listening"]["url"]
    until = time.monotonic() + PATIENCE_S
    while httpx.get(f"{url}/readyz", timeout=60).status_code != 200:
        assert time.monotonic() < until, "never ready"
    yield url
    process.kill()
    process.communicate()


def test_a_request_that_a_limit_refuses_is_retried_when_the_service_says(
    tell: Tell, limited: str, engine: Any
) -> None:
    told = tell("twice", limited)
    assert told == {"first": LAZY, "second": LAZY}
    assert generated(engine.received) == 2


def test_the_quick_start_runs(jdk: Any, guarded: Any, given_keys: Any) -> None:
    told = jdk.run(
        str(JAVA / "examples" / "Quickstart.java"), guarded.url, "the lazy dog", key=given_keys.tokens["user"]
    )
    assert "33 tokens by tiny@3" in told
    assert len(told.splitlines()) >= 3


def test_maven_finds_nothing_wrong_with_the_project() -> None:
    if shutil.which("mvn") is None:
        pytest.skip("no mvn on PATH; java/build needs none")
    checked = subprocess.run(
        ["mvn", "-o", "-q", "validate"],
        env=os.environ | {"MAVEN_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        cwd=JAVA,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
