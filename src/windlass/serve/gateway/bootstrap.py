"""The models that the command line names: those of one engine, or of the supervisor's routing table."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from windlass.serve.gateway.fleet.supervisor_client import first_routing
from windlass.serve.gateway.text.served_model import ServedModel, load_routed, load_served
from windlass.spec.errors import BadInput
from windlass.spec.protocol.routing import RoutedReplica, Routing

ENGINE = "engine"
"""The name of the only replica of a gateway without a supervisor."""


def add_served(parser: argparse.ArgumentParser) -> None:
    many: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument(
        "--supervisor", type=Path, help="Unix socket of the supervisor; replaces the options below"
    )
    parser.add_argument("--gateway", default="gateway", help="name of this gateway at the supervisor")
    parser.add_argument("--model", type=Path, **many, help="model directory; repeat")
    parser.add_argument("--name", **many, help="NAME or NAME@VERSION of each --model")
    parser.add_argument("--alias", **many, help="a further name (NAME@prod, or prod)")
    parser.add_argument("--adapter", **many, help="an adapter, as NAME:ADAPTER with the name of its model")
    parser.add_argument("--socket", type=Path, help="Unix socket of the engine")


def read_models(args: argparse.Namespace) -> tuple[tuple[ServedModel, ...], Routing]:
    """Load all models; return them with the first routing table."""
    if args.supervisor is not None:
        routing = asyncio.run(first_routing(args.supervisor))
        return tuple(load_routed(model) for model in routing.models), routing
    if args.socket is None or not args.model:
        raise BadInput("a gateway needs --supervisor, or --socket, --model and --name")
    models = _models(args)
    return models, single_engine(models, args.socket)


def single_engine(models: tuple[ServedModel, ...], socket: Path) -> Routing:
    """Return the routing table of a gateway with one engine."""
    return Routing(0, replicas=[RoutedReplica(ENGINE, str(socket), [served.id for served in models])])


def _models(args: argparse.Namespace) -> tuple[ServedModel, ...]:
    """Load all models; aliases and adapters belong to the model with the same name."""
    if len(args.model) != len(args.name):
        raise BadInput(f"--model is given {len(args.model)} times, but --name {len(args.name)} times")
    models = []
    for folder, name in zip(args.model, args.name, strict=True):
        bare = name.partition("@")[0]
        aliases = [alias for alias in args.alias if alias.partition("@")[0] == bare or "@" not in alias]
        adapters = [adapter for base, _, adapter in (a.rpartition(":") for a in args.adapter) if base == name]
        models.append(load_served(folder, name, aliases, adapters))
    return tuple(models)
