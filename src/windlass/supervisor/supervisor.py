"""The supervisor: keeps engines and gateways running.

    step = observe -> decide -> reconcile -> act -> send the routing to the gateways

An engine that ends or freezes is replaced; gateways have moved its requests to other replicas by then. A
gateway that ends is restarted on the same port. All of them end with the supervisor. So does the control
process, whose failure does not affect the service.
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
from windlass.supervisor.supervisor_metrics import ServiceMetrics

POLL_S = 0.1
MAX_LIVES = 20


class Supervisor:
    """A running service. As a context manager it stops the service when the block ends."""

    def __init__(
        self,
        offer: ServiceSpec,
        logs: Path,
        *,
        controllers: Sequence[Controller] = (),
        say: Callable[[str], None] = lambda _: None,
        gateway_socket: Callable[[str, Path], Path] = lambda _, socket: socket,
        control: Path | None = None,
    ) -> None:
        """Prepare a service, without starting it.

        `gateway_socket` gives the socket by which gateways reach an engine, from its name and own socket.
        `control` is the home whose runs and models the control API serves, if any.
        """
        self.offer, self.logs, self.wanted = offer, logs, offer.wanted
        self.controllers = list(controllers)
        self.say = say
        self._gateway_socket = gateway_socket
        self.replicas: dict[str, EngineReplica] = {}
        self.given_up: dict[str, str] = {}
        self._brownout = self._numbers = self._revision = 0
        self._lives: dict[str, list[ReplicaLife]] = {}
        self._failure: WindlassError | None = None
        self._is_up = False
        self._sent: Routing | None = None
        self._woken = threading.Event()
        self._folder = Path(tempfile.mkdtemp(prefix="windlass-"))
        self._serve = offer.serve
        self._control = (
            None if control is None else ControlChild(control, self._folder, logs, self._woken.set)
        )
        passes_to = None if self._control is None else self._control.socket
        self._gateways = Gateways(offer.serve, self._folder, logs, self._woken.set, passes_to)
        self._channel = GatewayChannel(self._folder / "steering", self._woken.set)
        self._metrics = ServiceMetrics(self._folder / "figures")

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
        """Stop everything: gateways first, which finish their answers, then the engines.

        The control process is asked to stop before them, or gateways would wait for clients that watch a run.
        """
        if self._control is not None:
            self._control.request_stop()
        self._gateways.close()
        for engine in self.replicas.values():
            engine.request_stop()
        for engine in self.replicas.values():
            engine.stop()
            engine.close()
        if self._control is not None:
            self._control.close()
        self._channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def watch(self, say: Callable[[str], None] | None = None) -> None:
        """Step until interrupted."""
        self.say = say or self.say
        while True:
            self.wait()
            self.step(time.monotonic())

    def wait(self, max_s: float = POLL_S) -> None:
        """Sleep until an event, or for `max_s`."""
        self._woken.wait(max_s)
        self._woken.clear()

    def step(self, now: float) -> None:
        """One round of the loop: observe, decide, reconcile, act, send the routing."""
        reports = self._channel.take()
        self._observe(reports, now)
        self._decide(reports, now)
        for action in reconcile(self.wanted, self._running(), now, held=self._held(now)):
            self._act(action, now)
        self._send_routing()
        self._metrics.update(self._running(), self.wanted)
        if self._control is not None and self._is_up:
            self._control.step(now, self.say)
        if self._failure is not None:
            raise self._failure

    def view(self, reports: GatewayReports | None = None) -> ServiceState:
        """Return the present state, as controllers see it."""
        reports = reports or GatewayReports()
        return ServiceState(
            self.wanted, tuple(self._running()), tuple(reports.outcomes), self._channel.demand(),
            reports.refused, dict(self.given_up),
        )  # fmt: skip

    def _running(self) -> list[RunningReplica]:
        return [engine.snapshot() for engine in self.replicas.values()]

    def _come_up(self) -> None:
        """Start everything; return when every replica is ready and every gateway can reach it."""
        self._send_routing()
        self._channel.start()
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
        """Whether every replica is ready and every gateway can reach every version."""
        count = sum(group.replicas for group in self.wanted.groups)
        ready = sum(engine.phase != "starting" for engine in self.replicas.values())
        versions = [group.version for group in self.wanted.groups if group.replicas]
        return ready >= count and self._channel.reached(versions) >= len(self.gateways)

    def _observe(self, reports: GatewayReports, now: float) -> None:
        """Update phases: which replicas became ready, ended or are frozen."""
        for name in reports.suspects:
            if name in self.replicas:
                self.replicas[name].suspected = True
        for engine in list(self.replicas.values()):
            if engine.exit_code is not None:
                self._reap(engine, now)
            elif engine.phase == "starting" and engine.liveness.ready is not None:
                engine.enter("ready", now)
            elif engine.liveness.is_hung or is_frozen(engine.liveness.silent_s, suspected=engine.suspected):
                self.say(f"{engine.name} does not answer; replacing it")
                self._end(engine, "it did not answer", now)
            elif engine.suspected and engine.liveness.silent_s < POLL_S:
                engine.suspected = False
            if engine.drain_known_at is None and engine.drains_by is not None:
                engine.drain_known_at = now if self._channel.agreed(engine.drains_by) else None
        self._gateways.restart_ended(now, self.say, may_restart=self._is_up)

    def _reap(self, engine: EngineReplica, now: float) -> None:
        """Remove an engine that has ended, and record how long it lived."""
        death = engine.death()
        del self.replicas[engine.name]
        engine.close()
        if engine.phase == "draining":
            return
        self._metrics.ended(engine.version)
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
        self.say(f"{version} cannot be started; giving up: {death.message}")
        if all(group.version in self.given_up for group in self.wanted.groups):
            self._failure = death

    def _end(self, engine: EngineReplica, why: str, now: float) -> None:
        """Kill an engine; the next routing no longer names it."""
        engine.kill()
        engine.enter("ended", now, why)
        self._reap(engine, now)

    def _held(self, now: float) -> set[str]:
        """Return the versions of which no replica may be started now: given up, or in restart back-off."""
        return set(self.given_up) | {
            version
            for version, lives in self._lives.items()
            if lives and now - lives[-1].ended_at < restart_delay_s(lives)
        }

    def _decide(self, reports: GatewayReports, now: float) -> None:
        view = self.view(reports)
        for controller in self.controllers:
            patch = controller.decide(view, now)
            self._apply(patch, now)
            view = replace(view, wanted=self.wanted, replicas=tuple(self._running()))

    def _apply(self, patch: Patch, now: float) -> None:
        if patch.wanted is not None:
            self._set_desired(patch.wanted)
        if patch.brownout is not None:
            self._brownout = patch.brownout
        for name, why in patch.unhealthy.items():
            if name in self.replicas and self.replicas[name].phase == "ready":
                self.replicas[name].enter("unhealthy", now, why)
        for name in patch.healthy:
            if name in self.replicas and self.replicas[name].phase == "unhealthy":
                self.replicas[name].enter("ready", now)
        for name, why in patch.replace.items():
            if name in self.replicas:
                self.say(f"replacing {name}: {why}")
                self._end(self.replicas[name], why, now)

    def _set_desired(self, wanted: DesiredService) -> None:
        """Set what should run; a version that comes back starts with a clean restart history."""
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
            engine.stop_or_kill(now)

    def _start_engine(self, version: str, now: float) -> None:
        group = self.wanted.group(version)
        assert group is not None
        self._numbers += 1
        name = f"engine-{self._numbers}"
        socket = self._folder / name
        # All versions get equal threads: a version under roll-out must not be slower for having fewer.
        threads = threads_each(self._serve, max(group.replicas for group in self.wanted.groups))
        command = engine_command(group.items, self._serve, socket, threads)
        log = self.logs / "engine.log"
        self.replicas[name] = EngineReplica(
            name, version, command, socket, log, self._woken.set, now, self._gateway_socket(name, socket)
        )

    def _send_routing(self) -> None:
        """Send the gateways the routing table, if it has changed."""
        routing = routing_of(self.wanted, self._running(), brownout=self._brownout)
        if routing != self._sent:
            self._sent = routing
            self._revision += 1
            self._channel.send(msgspec.structs.replace(routing, revision=self._revision))
        for engine in self.replicas.values():
            if engine.phase == "draining" and engine.drains_by is None:
                engine.drains_by = self._revision
