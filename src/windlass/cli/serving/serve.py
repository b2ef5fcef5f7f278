"""`windlass serve`: serve models over HTTP with OpenAI's API."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.serving.first_key import first_key, show_key
from windlass.cli.terminal import print_json
from windlass.registry.versions import NAME, Registry, Version, resolve_adapter, resolve_model
from windlass.runs.progress_line import ProgressLine
from windlass.serve.records.state import state_url
from windlass.spec.errors import BadInput, InUse, did_you_mean
from windlass.spec.read import override_in, parse, read_toml
from windlass.spec.serve import Serve
from windlass.supervisor.controllers import open_controllers
from windlass.supervisor.desired import Item
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

EPILOG = """\
examples:
  windlass serve shakespeare-char
  windlass serve shakespeare-char@2 --port 9000
  windlass serve base encoder --memory 4GiB           several models; the least recently used is unloaded
  windlass serve base@3 --replicas 2 --standby base@2  kill one: streams continue, byte for byte
  windlass serve base --adapter poet=poet@1           request it as base:poet, or poet
  windlass serve base --engine vllm --engine-args "--tensor-parallel-size 2"
  windlass serve base --no-keys                       without keys, for this machine only
  windlass serve base --host 0.0.0.0 --tls-certificate chain.pem --tls-key key.pem
  windlass serve base --job job.toml --set serve.transport.idle_s=30
  curl http://127.0.0.1:8000/v1/completions -H "Authorization: Bearer $WINDLASS_KEY" \\
       -H 'content-type: application/json' \\
       -d '{"model": "shakespeare-char", "prompt": "To be", "max_tokens": 20}'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "model", metavar="MODEL", nargs="+", help="NAME, NAME@VERSION, NAME@ALIAS or a model directory"
    )
    parser.add_argument(
        "--adapter",
        metavar="[MODEL:]NAME=ADAPTER",
        action="append",
        default=[],
        help="serve a LoRA adapter (registered or a directory) of the first MODEL, or of the named one",
    )
    add_address(parser)
    parser.add_argument(
        "--gateways", type=int, metavar="N", help="gateway processes that share the port (default: 1)"
    )
    parser.add_argument(
        "--replicas", type=int, metavar="N", help="engine replicas that fail over to each other (default: 1)"
    )
    parser.add_argument(
        "--standby",
        metavar="MODEL",
        action="append",
        default=[],
        help="another version that answers while no replica of the main one can (may be repeated)",
    )
    parser.add_argument("--slots", type=int, help="max batch size in requests (default: 32)")
    parser.add_argument("--queue", type=int, help="max waiting requests (default: 256)")
    parser.add_argument(
        "--threads", type=int, help="CPU threads of each engine (default: all cores, divided)"
    )
    parser.add_argument(
        "--precision", metavar="KIND", help="float32, bfloat16, int8 or int4 (default: as stored)"
    )
    parser.add_argument("--prefix-cache", metavar="POLICY", help="lru (default), lfu or off")
    parser.add_argument("--kv", metavar="KIND", help="format of the KV cache: float16 (default) or float32")
    parser.add_argument(
        "--no-drafts", action="store_const", const=False, dest="drafts", help="no speculative decoding"
    )
    parser.add_argument("--memory", metavar="SIZE", help="memory limit for the models, e.g. 4GiB")
    parser.add_argument(
        "--engine", metavar="ENGINE", help="windlass (default), or vllm on a machine with a GPU"
    )
    parser.add_argument(
        "--engine-args", metavar="OPTIONS", help="further options of `vllm serve`, as one string"
    )
    parser.add_argument(
        "--engine-executable", metavar="PATH", help="the vLLM program (default: vllm on PATH)"
    )
    parser.add_argument(
        "--no-control",
        action="store_const",
        const=False,
        dest="control",
        help="do not serve the control API (runs, models, plans) to administrators below /admin/control",
    )
    parser.add_argument("--access-log", metavar="FILE", help="file that gets one line of JSON per request")
    parser.add_argument(
        "--traces",
        metavar="URL",
        help="send traces to this OpenTelemetry collector, e.g. http://127.0.0.1:4318",
    )
    parser.add_argument(
        "--job", metavar="JOB.toml", help="job file whose table [serve] is used; options override it"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="serve.KEY=VALUE",
        action="append",
        default=[],
        help="change any setting of [serve], e.g. --set serve.transport.idle_s=30 (may be repeated)",
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object once the service is ready")
    parser.set_defaults(run=run)


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 takes a free one (default: 8000)")
    parser.add_argument(
        "--no-keys",
        action="store_const",
        const=True,
        dest="open",
        help="serve without API keys; only for this machine (--host 127.0.0.1)",
    )
    parser.add_argument(
        "--state", metavar="URL", help="database of keys and limits (default: HOME/service.db, in SQLite)"
    )
    parser.add_argument("--tls-certificate", metavar="FILE", help="certificate chain in PEM; enables https")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key in PEM")
    parser.add_argument(
        "--origin",
        metavar="ORIGIN",
        action="append",
        dest="origins",
        help="allow browsers to call from this origin (CORS), e.g. https://app.example (may be repeated)",
    )


def serve_of(args: argparse.Namespace, home: Path) -> Serve:
    """Parse the options of a service, with the checks of the job file; options override the job file."""
    job = getattr(args, "job", None)
    data = {"serve": read_toml(Path(job)).get("serve", {}) if job is not None else {}}
    for override in getattr(args, "overrides", ()):
        if not override.startswith("serve."):
            raise BadInput(
                f"--set {override}: only settings of [serve] are allowed here",
                hint="e.g. --set serve.slots=8",
            )
        override_in(data, override)
    for key in Serve.model_fields:
        if isinstance(data["serve"], dict) and getattr(args, key, None) is not None:
            data["serve"][key] = getattr(args, key)
    serve = parse(Serve, data["serve"], job or "serve")
    return serve.model_copy(update={"state": state_url(home, serve.state)})


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    offer, versions = offer_of(home, args.model, args.adapter, serve_of(args, home), args.standby)
    run_service(home, offer, versions, as_json=args.json)
    return 0


def offer_of(
    home: Path, models: Sequence[str], adapters: Sequence[str], serve: Serve, standby: Sequence[str] = ()
) -> tuple[ServiceSpec, list[Version]]:
    """Resolve the models to serve; return the service spec and the registered versions in it."""
    found = [resolve_model(home, model) for model in models]
    names = [name for name, _, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InUse(f"two models are called '{twice}'", hint="register one of them under another name")
    versions = [version for _, _, version in found if version is not None]
    of_model: dict[str, dict[str, Path]] = {name: {} for name in names}
    for text in adapters:
        model, name, reference = read_adapter(text, names)
        if name in of_model[model]:
            raise InUse(f"--adapter {text}: '{model}' has an adapter '{name}' already")
        of_model[model][name], version = resolve_adapter(home, reference)
        versions += [version] if version is not None else []
    first, *others = (
        Item(name, path, version.aliases if version else (), of_model[name]) for name, path, version in found
    )
    waiting, held = standby_of(home, standby, names)
    offer = ServiceSpec(first.name, first.model, serve, first.aliases, first.adapters, tuple(others), waiting)
    return offer, versions + held


def standby_of(
    home: Path, models: Sequence[str], served: Sequence[str]
) -> tuple[tuple[Item, ...], list[Version]]:
    """Resolve the standby versions; each must be another version of a served model."""
    items, versions = [], []
    bare = {name.partition("@")[0] for name in served}
    for model in models:
        name, path, version = resolve_model(home, model)
        if name in served or name.partition("@")[0] not in bare:
            raise BadInput(
                f"--standby {model}: is not another version of {', '.join(served)}",
                hint="e.g. windlass serve base@3 --standby base@2",
            )
        items.append(Item(name, path, version.aliases if version else ()))
        versions += [version] if version is not None else []
    return tuple(items), versions


def read_adapter(text: str, models: Sequence[str]) -> tuple[str, str, str]:
    """Parse [MODEL:]NAME=ADAPTER; a model may be given without its version."""
    front, equals, reference = text.partition("=")
    model, colon, name = front.rpartition(":")
    if not equals or not reference or not NAME.fullmatch(name):
        raise BadInput(f"--adapter {text}: is not [MODEL:]NAME=ADAPTER", hint="e.g. --adapter poet=poet@1")
    if not colon:
        return models[0], name, reference
    for full in models:
        if model in (full, full.partition("@")[0]):
            return full, name, reference
    raise BadInput(f"--adapter {text}: no model '{model}' is served", hint=did_you_mean(model, list(models)))


def run_service(home: Path, offer: ServiceSpec, versions: Sequence[Version], *, as_json: bool) -> None:
    """Serve until interrupted."""
    line = ProgressLine(quiet=as_json)
    names = [item.name for item in offer.items]
    check_port(offer.serve)
    line.say(f"loading {', '.join(names)}")
    with contextlib.ExitStack() as stack:
        for version in versions:
            stack.enter_context(Registry(home).holding(version))
        controllers = stack.enter_context(open_controllers(home, offer.serve))
        control = home if offer.serve.control else None
        service = stack.enter_context(
            Supervisor(offer, home / "logs", controllers=controllers, say=line.say, control=control)
        )
        for number in (signal.SIGINT, signal.SIGTERM):  # even if the parent process ignores SIGINT
            signal.signal(number, _interrupt)
        key = first_key(offer.serve)  # not earlier: a service that fails to start could not show it
        if as_json:
            print_json({"url": service.url, "model": offer.name, "models": names, "key": key})
        else:
            print(f"serving {', '.join(names)} at {service.url} (Ctrl-C stops)", flush=True)
            show_key(key, service.url, offer.name)
        with contextlib.suppress(KeyboardInterrupt):
            service.watch()
        line.say("stopping")


def check_port(serve: Serve) -> None:
    """Raise InUse if another process listens on the port.

    Gateways share their port (SO_REUSEPORT) and would share it with another service, too; so this binds
    without sharing.
    """
    family = socket.AF_INET6 if ":" in serve.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((serve.host, serve.port))
        except OSError as error:
            raise InUse(
                f"{serve.host}:{serve.port}: {os.strerror(error.errno or 0).lower()}",
                hint="give another --port, or 0 for a free one",
            ) from None


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
