"""A fleet of small engines that speak the real wire: routing and fail-over."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from windlass.http.errors import ApiError
from windlass.serve.gateway.caller import ANYONE
from windlass.serve.gateway.fleet import fleet as fleet_module
from windlass.serve.gateway.fleet.fleet import ReplicaFleet
from windlass.serve.gateway.fleet.request_handle import RequestHandle
from windlass.serve.gateway.limits.admission_controller import AdmissionController
from windlass.serve.gateway.limits.request_cost import RequestCost
from windlass.serve.gateway.observe.gateway_metrics import Metrics
from windlass.spec.limits import ServeLimits
from windlass.spec.protocol.routing import AnswerOutcome, Demand, Outcomes, RoutedReplica, Routing, Suspect
from windlass.spec.protocol.wire import (
    LENGTH,
    Failed,
    Generate,
    Message,
    Ping,
    Pong,
    Ready,
    Tokens,
    frame,
    to_engine,
)

PATIENCE_S = 60.0


class SmallEngine:
    """An engine that continues every sequence by counting from its last token; attributes script it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.received: list[Generate] = []
        self.fails = ""
        self.silent_after: int | None = None
        self.held_after: int | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._meet, str(self.path))

    def end(self) -> None:
        """Go as a killed process goes."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self.path.unlink(missing_ok=True)

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._say(writer, Ready("m", "llama", 1, 1000, 1000, 8, 4, 1))
        try:
            while True:
                (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                message = to_engine.decode(await reader.readexactly(size))
                if isinstance(message, Generate):
                    self._answer(message, writer)
                elif isinstance(message, Ping) and self.silent_after is None:
                    self._say(writer, Pong(message.number, 0, 0, 0))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def _answer(self, request: Generate, writer: asyncio.StreamWriter) -> None:
        self.received.append(request)
        if self.fails:
            self._say(writer, Failed(request.id, self.fails, "scripted failure"))
            return
        for number in range(request.max_tokens):
            if number in (self.silent_after, self.held_after):
                return
            last = number == request.max_tokens - 1
            self._say(
                writer,
                Tokens(request.id, [request.tokens[-1] + number + 1], finish="length" if last else None),
            )

    def _say(self, writer: asyncio.StreamWriter, message: Message) -> None:
        writer.write(frame(message))


class Scene:
    """Engines a, b, ... of versions, and a fleet connected to them."""

    def __init__(self, folder: Path, versions: str, patience_s: float) -> None:
        self.engines = {chr(97 + n): SmallEngine(folder / chr(97 + n)) for n in range(len(versions))}
        self.versions = dict(zip(self.engines, versions, strict=True))
        self.states: dict[str, Any] = dict.fromkeys(self.engines, "ready")
        self.metrics = Metrics()
        self.fleet = ReplicaFleet(self.metrics, self.routing(), patience_s=patience_s)

    def routing(self) -> Routing:
        return Routing(
            1,
            replicas=[
                RoutedReplica(name, str(engine.path), [f"m@{self.versions[name]}"], self.states[name])
                for name, engine in self.engines.items()
                if name in self.states
            ],
        )

    def submit(self, *, version: str = "1", fallbacks: tuple[str, ...] = (), **more: Any) -> RequestHandle:
        request = Generate("id", [1], 6, model=f"m@{version}", **more)
        return self.fleet.submit([request], [f"m@{each}" for each in fallbacks])

    def connected(self) -> int:
        text = self.metrics.text().decode()
        lines = [line for line in text.splitlines() if line.startswith("windlass_replica_connected{")]
        return sum(line.endswith((" 1", " 1.0")) for line in lines)

    def request_counts(self) -> dict[str, int]:
        return {name: len(engine.received) for name, engine in self.engines.items() if engine.received}

    def outcomes(self) -> list[AnswerOutcome]:
        said = self.fleet.reports.take([], [])
        return [each for message in said if isinstance(message, Outcomes) for each in message.outcomes]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true():
                await asyncio.sleep(0.005)


@asynccontextmanager
async def scene(
    versions: str = "11", *, patience_s: float = PATIENCE_S, up: str = ""
) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory(prefix="wl") as folder:
        made = Scene(Path(folder), versions, patience_s)
        for engine in made.engines.values():
            await engine.start()
        running = asyncio.create_task(made.fleet.run())
        try:
            await made.until(lambda: made.connected() == len(made.engines))
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for engine in made.engines.values():
                engine.end()


async def answer(handle: RequestHandle) -> list[int]:
    """Read an answer to its end."""
    tokens: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for _, message in await handle.next():
                assert isinstance(message, Tokens)
                tokens += message.tokens
                if message.finish is not None:
                    handle.close()
                    return tokens


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "TICK_S", 0.02)


def played(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(play())


def test_an_answer_continues_on_another_replica_when_its_own_exits() -> None:
    async def play() -> None:
        async with scene() as s:
            for engine in s.engines.values():
                engine.held_after = 2
            handle = s.submit()
            await s.until(lambda: handle.tokens == 2)
            first, other = sorted(s.engines.values(), key=lambda engine: not engine.received)
            other.held_after = None
            first.end()
            assert await answer(handle) == [2, 3, 4, 5, 6, 7]
            assert [each.tokens for each in other.received] == [[1, 2, 3]]
            assert [each.code for each in s.outcomes()] == ["lost", ""]

    played(play)


def test_a_replica_that_falls_silent_is_left_and_suspected() -> None:
    async def play() -> None:
        async with scene() as s:
            for engine in s.engines.values():
                engine.silent_after = 3
            handle = s.submit()
            await s.until(lambda: len(s.request_counts()) == 1)
            other = next(engine for engine in s.engines.values() if not engine.received)
            other.silent_after = None
            assert await answer(handle) == [2, 3, 4, 5, 6, 7]
            said = s.fleet.reports.take([], [])
            assert [each.why for each in said if isinstance(each, Suspect)] == ["silent"]

    played(play)


def test_what_an_engine_fails_is_tried_elsewhere_and_counts_against_it() -> None:
    async def play() -> None:
        async with scene("11") as s:
            s.engines["a"].fails = "not_a_number"
            for number in range(8):
                tokens = await answer(s.fleet.submit([Generate(f"{number}", [number], 2, model="m@1")]))
                assert tokens == [number + 1, number + 2]
            failed = {each.replica for each in s.outcomes() if each.code == "not_a_number"}
            assert failed <= {"a"}
            assert s.engines["b"].received

    played(play)


def test_a_clients_error_is_refused_at_once_and_counts_against_no_replica() -> None:
    async def play() -> None:
        async with scene() as s:
            for engine in s.engines.values():
                engine.fails = "bad_tokens"
            with pytest.raises(ApiError) as refused:
                await answer(s.submit())
            assert refused.value.status == 400
            assert sum(s.request_counts().values()) == 1
            assert s.outcomes() == []

    played(play)


def test_a_version_that_fails_leaves_its_requests_to_another_before_the_first_token() -> None:
    async def play() -> None:
        async with scene("12") as s:
            s.engines["b"].fails = "not_a_number"
            handle = s.submit(version="2", fallbacks=("1",))
            assert await answer(handle) == [2, 3, 4, 5, 6, 7]
            assert handle.served_by == "m@1"
            assert [(each.version, each.code) for each in s.outcomes()] == [
                ("m@2", "not_a_number"),
                ("m@1", ""),
            ]
            with pytest.raises(ApiError, match="scripted failure"):
                await answer(s.submit(version="2"))

    played(play)


def test_a_request_is_refused_when_no_replica_comes_in_time() -> None:
    async def play() -> None:
        async with scene("1", patience_s=0.3) as s:
            s.engines["a"].end()
            await s.until(lambda: not s.fleet.alive())
            with pytest.raises(ApiError) as refused:
                await answer(s.submit())
            assert (refused.value.code, refused.value.retry_after_s) == ("engine_unavailable", 1)

    played(play)


def test_a_request_waits_for_a_replica() -> None:
    async def play() -> None:
        async with scene("1") as s:
            s.engines["a"].end()
            await s.until(lambda: not s.fleet.alive())
            handle = s.submit()
            await s.engines["a"].start()
            assert await answer(handle) == [2, 3, 4, 5, 6, 7]

    played(play)


def test_a_gateway_that_was_suspended_still_looks_for_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "TICK_S", 0.02)

    async def play() -> None:
        async with scene("1", patience_s=0.6) as s:
            s.engines["a"].end()
            await s.until(lambda: not s.fleet.alive())
            handle = s.submit()
            await s.engines["a"].start()
            time.sleep(0.8)  # the whole loop stands still for longer than the patience
            assert await answer(handle) == [2, 3, 4, 5, 6, 7]

    played(play)


def test_a_gateway_without_replicas_waits_for_the_first_replica_of_a_version() -> None:
    async def play() -> None:
        async with scene("1", patience_s=0.3) as s:
            await s.fleet.wait_until_known("m@1")
            with pytest.raises(ApiError, match="no engine connected in time"):
                await s.fleet.wait_until_known("m@2")
            soon = asyncio.ensure_future(s.fleet.wait_until_known("m@3"))
            await asyncio.sleep(0)
            assert not soon.done()
            s.fleet._pool._known["m@3"] = s.fleet.model_info("m@1")
            await soon

    played(play)


def test_draining_replicas_get_nothing_new_and_unhealthy_ones_only_what_no_other_can_take() -> None:
    async def play() -> None:
        async with scene("111") as s:
            s.states |= {"a": "draining", "b": "unhealthy"}
            s.fleet.apply(s.routing())
            for number in range(6):
                await answer(s.fleet.submit([Generate(f"{number}", [number], 1, model="m@1")]))
            assert s.request_counts() == {"c": 6}
            del s.states["c"]
            s.fleet.apply(s.routing())
            await answer(s.submit())
            assert s.request_counts() == {"b": 1, "c": 6}

    played(play)


def test_who_was_sent_to_a_version_before_it_left_is_answered_by_the_last_to_have_it() -> None:
    """A roll-back may come between choosing a version and submitting; other vocabularies cannot help."""

    async def play() -> None:
        async with scene("12", patience_s=0.3) as s:
            s.states["b"] = "draining"
            s.fleet.apply(s.routing())
            assert s.fleet.alive() == {"m@1"}
            assert await answer(s.submit(version="2", fallbacks=("1",))) == [2, 3, 4, 5, 6, 7]
            assert s.request_counts() == {"a": 1}
            assert await answer(s.submit(version="2")) == [2, 3, 4, 5, 6, 7]
            assert s.request_counts() == {"a": 1, "b": 1}
            s.fleet.submit([Generate("copy", [1], 6, model="m@2")], shadow=True)
            del s.states["b"]
            s.fleet.apply(s.routing())
            with pytest.raises(ApiError, match="no engine"):
                await answer(s.submit(version="2"))
            assert s.request_counts() == {"a": 1, "b": 1}

    played(play)


def test_a_replica_taken_out_of_the_table_loses_no_answer() -> None:
    async def play() -> None:
        async with scene() as s:
            for engine in s.engines.values():
                engine.silent_after = 2
            handle = s.submit()
            await s.until(lambda: len(s.request_counts()) == 1)
            (first,) = s.request_counts()
            other = next(name for name in s.engines if name != first)
            s.engines[other].silent_after = None
            del s.states[first]
            s.fleet.apply(s.routing())
            assert await answer(handle) == [2, 3, 4, 5, 6, 7]
            assert handle.replica == other

    played(play)


def test_neither_copies_nor_requests_for_other_versions_take_the_room_of_a_version() -> None:
    async def play() -> None:
        async with scene("12") as s:
            for engine in s.engines.values():
                engine.held_after = 0
            s.fleet.submit([Generate(f"copy {n}", [1], 6, model="m@1") for n in range(200)], shadow=True)
            for n in range(104):
                s.fleet.submit([Generate(f"other {n}", [1], 6, model="m@2")])
            for n in range(104):
                s.fleet.submit([Generate(f"{n}", [1], 6, model="m@1")])
            limits = ServeLimits(wait=3600.0)
            admission = AdmissionController(limits, None, s.fleet, s.metrics, holder="g", queue=100)
            with pytest.raises(ApiError, match="104 answers"):
                await admission.admit(ANYONE, RequestCost("m@1", answers=1, prompt_tokens=1, max_tokens=6))

    played(play)


def test_shadow_requests_are_distinguished_and_demand_is_counted_by_version() -> None:
    async def play() -> None:
        async with scene("12") as s:
            s.engines["a"].silent_after = s.engines["b"].silent_after = 1
            handle = s.submit()
            shadow = s.fleet.submit([Generate("copy", [1], 6, model="m@2")], shadow=True)
            assert await handle.next()
            demand = s.fleet.reports.take(s.fleet.tasks, s.fleet.alive())[-1]
            assert isinstance(demand, Demand)
            assert {version: each.in_flight for version, each in demand.versions.items()} == {
                "m@1": 1,
                "m@2": 1,
            }
            assert demand.alive == ["m@1", "m@2"]
            handle.close()
            shadow.close()
            assert [(each.version, each.shadow) for each in s.outcomes()] == [("m@1", False), ("m@2", True)]

    played(play)
