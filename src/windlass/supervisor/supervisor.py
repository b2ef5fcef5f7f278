"""Keeps a service up: engines that compute, gateways that hold the clients' connections.

    step = observe -> decide -> reconcile -> act -> tell the gateways

An engine that ends or freezes is replaced; gateways have moved its requests to others by then. A gateway that
ends is started again on the same port. All of them end with the supervisor, and so does the control process,
without which the service goes on.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import msgspec

from windlass.spec.errors import AskedWrongly, WindlassError
from windlass.spec.protocol.routing import Routing
from windlass.supervisor.control_child import ControlChild
from windlass.supervisor.desired import DesiredService
from windlass.supervisor.gateway_channel import GatewayChannel, GatewayReports
from windlass.supervisor.gateways import Gateways
from windlass.supervisor.processes import EngineReplica, GatewayProcess
from windlass.supervisor.reconcile import (
    Action,
    ReplicaLife,
    is_frozen,
    is_hopeless,
    reconcile,
    restart_delay_s,
    routing_of,
)
from windlass.supervisor.service_spec import ServiceSpec, engine_command, threads_each
from windlass.supervisor.state import Controller, Patch, RunningReplica, ServiceState
from windlass.supervisor.supervisor_metrics import ServiceFigures

POLL_S = 0.1
MAX_LIVES = 20


class Supervisor:
    """A running service. As a context manager it is gone when the block ends."""

    def __init__(
        self,
        offer: ServiceSpec,
        logs: Path,
        *,
        deciders: Sequence[Controller] = (),
        say: Callable[[str], None] = lambda _: None,
        door: Callable[[str, Path], Path] = lambda _, socket: socket,
        control: Path | None = None,
    ) -> None:
        """Make everything ready; `control` is the home whose runs and models gateways offer, if any."""
        self.offer, self.logs, self.wanted = offer, logs, offer.wanted
        self.deciders = list(deciders)
        self.say = say
        self._door = door
        self.replicas: dict[str, EngineReplica] = {}
        self.given_up: dict[str, str] = {}
        self._brownout = self._numbers = self._revision = 0
        self._lives: dict[str, list[ReplicaLife]] = {}
        self._failure: WindlassError | None = None
        self._is_up = False
        self._told: Routing | None = None
        self._woken = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-"))
        self._serve = offer.serve
        self._control = (
            None if control is None else ControlChild(control, self._folder, logs, self._woken.set)
        )
        passes_to = None if self._control is None else self._control.socket
        self._gateways = Gateways(offer.serve, self._folder, logs, self._woken.set, passes_to)
        self._steering = GatewayChannel(self._folder / "steering", self._woken.set)
        self._figures = ServiceFigures(self._folder / "figures")

    @property
    def gateways(self) -> Sequence[GatewayProcess]:
        return self._gateways.all

    @property
    def url(self) -> str:
        return self.gateways[0].url

    def __enter__(self) -> Supervisor:
        try:
            self._come_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything: gateways first, which finish their answers, then the engines.

        The control process is asked before them, or they would wait for whoever watches a run.
        """
        if self._control is not None:
            self._control.ask_to_end()
        self._gateways.close()
        for engine in self.replicas.values():
            engine.ask_to_end()
        for engine in self.replicas.values():
            engine.stop()
            engine.close()
        if self._control is not None:
            self._control.close()
        self._steering.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def watch(self, say: Callable[[str], None] | None = None) -> None:
        """Keep the service up until interrupted."""
        self.say = say or self.say
        while True:
            self.wait()
            self.step(time.monotonic())

    def wait(self, max_s: float = POLL_S) -> None:
        """Sleep until something happens, or for a moment."""
        self._woken.wait(max_s)
        self._woken.clear()

    def step(self, now: float) -> None:
        """Look once at everything and do what is due."""
        heard = self._steering.take()
        self._observe(heard, now)
        self._decide(heard, now)
        for action in reconcile(self.wanted, self._seen(), now, held=self._held(now)):
            self._act(action, now)
        self._tell()
        self._figures.tell(self._seen(), self.wanted)
        if self._control is not None and self._is_up:
            self._control.step(now, self.say)
        if self._failure is not None:
            raise self._failure

    def view(self, heard: GatewayReports | None = None) -> ServiceState:
        """Return what is known right now."""
        heard = heard or GatewayReports()
        return ServiceState(
            self.wanted, tuple(self._seen()), tuple(heard.outcomes), self._steering.demand(), heard.refused,
            dict(self.given_up),
        )  # fmt: skip

    def _seen(self) -> list[RunningReplica]:
        return [engine.seen() for engine in self.replicas.values()]

    def _come_up(self) -> None:
        """Start everything; return when every replica is ready and a client would be answered."""
        self._tell()
        self._steering.start()
        self.step(time.monotonic())
        self._gateways.start_first()
        self._step_until(lambda: bool(self.gateways[0].url))
        self._gateways.start_others()
        self._step_until(self._all_ready)
        self._is_up = True

    def _step_until(self, done: Callable[[], bool]) -> None:
        while not done():
            self.wait()
            self.step(time.monotonic())

    def _all_ready(self) -> bool:
        """Tell whether every replica is ready and every gateway can reach every version."""
        count = sum(group.replicas for group in self.wanted.groups)
        ready = sum(engine.phase != "starting" for engine in self.replicas.values())
        versions = [group.version for group in self.wanted.groups if group.replicas]
        return ready >= count and self._steering.reached(versions) >= len(self.gateways)

    def _observe(self, heard: GatewayReports, now: float) -> None:
        """Note who became ready, who ended and who is frozen."""
        for name in heard.suspects:
            if name in self.replicas:
                self.replicas[name].suspected = True
        for engine in list(self.replicas.values()):
            if engine.exit_code is not None:
                self._bury(engine, now)
            elif engine.phase == "starting" and engine.pulse.ready is not None:
                engine.enter("ready", now)
            elif engine.pulse.is_hung or is_frozen(engine.pulse.silent_s, suspected=engine.suspected):
                self.say(f"{engine.name} does not answer; it is replaced")
                self._end(engine, "it did not answer", now)
            elif engine.suspected and engine.pulse.silent_s < POLL_S:
                engine.suspected = False
            if engine.shunned_since is None and engine.drains_by is not None:
                engine.shunned_since = now if self._steering.agreed(engine.drains_by) else None
        self._gateways.revive(now, self.say, hopeful=self._is_up)

    def _bury(self, engine: EngineReplica, now: float) -> None:
        """Take an engine that ended off the books, and remember how long it lived."""
        death = engine.death()
        del self.replicas[engine.name]
        engine.close()
        if engine.phase == "draining":
            return
        self._figures.ended(engine.version)
        lives = self._lives.setdefault(engine.version, [])
        lives.append(ReplicaLife(now, None if engine.ready_at is None else now - engine.ready_at))
        del lives[:-MAX_LIVES]
        if not self._is_up and engine.ready_at is None:
            self._failure = death
        elif is_hopeless(lives) or (isinstance(death, AskedWrongly) and engine.ready_at is None):
            self._give_up(engine.version, death)
        else:
            self.say(f"{death.message}; starting another")

    def _give_up(self, version: str, death: WindlassError) -> None:
        self.given_up[version] = death.message
        self.say(f"{version} cannot be started and is given up: {death.message}")
        if all(group.version in self.given_up for group in self.wanted.groups):
            self._failure = death

    def _end(self, engine: EngineReplica, why: str, now: float) -> None:
        """End an engine by force; gateways are told that it is gone."""
        engine.kill()
        engine.enter("ended", now, why)
        self._bury(engine, now)

    def _held(self, now: float) -> set[str]:
        """Return the versions of which no replica is started now."""
        return set(self.given_up) | {
            version
            for version, lives in self._lives.items()
            if lives and now - lives[-1].ended_at < restart_delay_s(lives)
        }

    def _decide(self, heard: GatewayReports, now: float) -> None:
        view = self.view(heard)
        for decider in self.deciders:
            changes = decider.decide(view, now)
            self._change(changes, now)
            view = replace(view, wanted=self.wanted, replicas=tuple(self._seen()))

    def _change(self, changes: Patch, now: float) -> None:
        if changes.wanted is not None:
            self._want(changes.wanted)
        if changes.brownout is not None:
            self._brownout = changes.brownout
        for name, why in changes.unwell.items():
            if name in self.replicas and self.replicas[name].phase == "ready":
                self.replicas[name].enter("unwell", now, why)
        for name in changes.well:
            if name in self.replicas and self.replicas[name].phase == "unwell":
                self.replicas[name].enter("ready", now)
        for name, why in changes.replace.items():
            if name in self.replicas:
                self.say(f"{name} is replaced: {why}")
                self._end(self.replicas[name], why, now)

    def _want(self, wanted: DesiredService) -> None:
        """Take what is wanted from now on; a version that comes back is tried afresh."""
        before = {group.version for group in self.wanted.groups}
        for group in wanted.groups:
            if group.version not in before:
                self.given_up.pop(group.version, None)
                self._lives.pop(group.version, None)
        self.wanted = wanted

    def _act(self, action: Action, now: float) -> None:
        if action.verb == "start":
            self._start_engine(action.what, now)
        elif action.verb == "drain":
            self.replicas[action.what].enter("draining", now, action.why)
        else:
            engine = self.replicas[action.what]
            engine.enter("draining", now, action.why)
            engine.end_in_time(now)

    def _start_engine(self, version: str, now: float) -> None:
        group = self.wanted.group(version)
        assert group is not None
        self._numbers += 1
        name = f"engine-{self._numbers}"
        socket = self._folder / name
        # Versions beside each other get equal threads: one that is rolled out must not be slower for that.
        threads = threads_each(self._serve, max(each.replicas for each in self.wanted.groups))
        command = engine_command(group.items, self._serve, socket, threads)
        log = self.logs / "engine.log"
        self.replicas[name] = EngineReplica(
            name, version, command, socket, log, self._woken.set, now, self._door(name, socket)
        )

    def _tell(self) -> None:
        """Tell the gateways where requests go, if that has changed."""
        routing = routing_of(self.wanted, self._seen(), brownout=self._brownout)
        if routing != self._told:
            self._told = routing
            self._revision += 1
            self._steering.tell(msgspec.structs.replace(routing, revision=self._revision))
        for engine in self.replicas.values():
            if engine.phase == "draining" and engine.drains_by is None:
                engine.drains_by = self._revision
