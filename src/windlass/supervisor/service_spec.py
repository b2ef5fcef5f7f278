"""What `windlass serve` serves, and the command lines of the processes of a service."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windlass.spec.errors import BadInput
from windlass.spec.processes import ENGINE, VLLM_ENGINE
from windlass.spec.serve import Serve
from windlass.supervisor.desired import DesiredService, Item, ReplicaGroup


@dataclass(frozen=True)
class ServiceSpec:
    """What to serve: a model, further models in the same engines, and standby versions."""

    name: str
    model: Path
    serve: Serve
    aliases: tuple[str, ...] = ()
    adapters: Mapping[str, Path] = field(default_factory=dict)
    others: tuple[Item, ...] = ()
    standby: tuple[Item, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        return Item(self.name, self.model, self.aliases, self.adapters), *self.others

    @property
    def wanted(self) -> DesiredService:
        """Return the initial desired state; a standby version has one replica."""
        waiting = tuple(ReplicaGroup((item,), 1, weight=0.0) for item in self.standby)
        return DesiredService(
            (ReplicaGroup(self.items, self.serve.replicas), *waiting),
            tuple(item.name for item in self.standby),
        )


def write_settings(serve: Serve, file: Path) -> Path:
    """Write the table [serve] so that no other user can read it: it may hold the password of a database."""
    file.touch(mode=0o600)
    file.write_text(serve.model_dump_json())
    return file


def gateway_args(
    name: str, steering: Path, settings: Path, figures: Path, control: Path | None = None
) -> list[str]:
    """Return the command line of a gateway."""
    args = ["--gateway", name, "--supervisor", str(steering), "--settings", str(settings)]
    args += ["--figures", str(figures)]
    return args if control is None else [*args, "--control", str(control)]


def engine_command(items: Sequence[Item], serve: Serve, socket: Path, threads: int) -> tuple[str, list[str]]:
    """Return the module of the engine, and its arguments."""
    args = ["--socket", str(socket), "--slots", str(serve.slots)]
    for item in items:
        args += ["--model", str(item.model), "--name", item.name]
    if serve.engine == "vllm":
        return VLLM_ENGINE, [*args, *_vllm_args(items, serve)]
    for item in items:
        named = (f"{item.name}:{name}={path}" for name, path in item.adapters.items())
        args += [part for adapter in named for part in ("--adapter", adapter)]
    given = {"--threads": threads, "--memory": serve.memory, "--precision": serve.precision}
    for option, value in given.items():
        args += [option, str(value)] if value is not None else []
    args += ["--prefix-cache", serve.prefix_cache, "--keys", serve.kv]
    return ENGINE, args if serve.drafts else [*args, "--no-drafts"]


def threads_each(serve: Serve, replicas: int) -> int:
    """Return the threads of each replica: as set, or the cores divided among the replicas."""
    return serve.threads or max(1, len(os.sched_getaffinity(0)) // max(1, replicas))


def _vllm_args(items: Sequence[Item], serve: Serve) -> list[str]:
    if len(items) > 1:
        raise BadInput(
            f"--engine vllm serves one model, not {len(items)}",
            hint="start one service for each, on ports of their own",
        )
    # As --option=value, because a value may begin with a dash.
    args = [f"--executable={serve.engine_executable}", f"--engine-args={serve.engine_args}"]
    return args + [f"--adapter={name}={path}" for name, path in items[0].adapters.items()]
