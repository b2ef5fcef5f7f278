"""`windlass serve`: answer over HTTP, as OpenAI's API does."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import ProgressLine, print_json
from windlass.operate.registry import NAME, Registry, Version, resolve_adapter, resolve_model
from windlass.operate.service import Item, Offer, Service
from windlass.spec.errors import BadInput, InUse, did_you_mean
from windlass.spec.read import parse
from windlass.spec.serve import Serve

EPILOG = """\
examples:
  windlass serve shakespeare-char
  windlass serve shakespeare-char@2 --port 9000
  windlass serve base encoder --memory 4GiB           several models; the longest unused makes room
  windlass serve base --adapter poet=poet@1           ask for it as base:poet, or poet
  windlass serve base --engine vllm --engine-args "--tensor-parallel-size 2"
  curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
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
        help="serve a LoRA adapter, a registered one or a directory, of the first MODEL or of the one named",
    )
    add_address(parser)
    parser.add_argument("--slots", type=int, help="requests computed together (default: 32)")
    parser.add_argument("--queue", type=int, help="requests that may wait (default: 256)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    parser.add_argument(
        "--precision", metavar="KIND", help="float32, bfloat16, int8 or int4 (default: as stored)"
    )
    parser.add_argument("--prefix-cache", metavar="POLICY", help="lru (default), lfu or off")
    parser.add_argument("--kv", metavar="KIND", help="keys and values as float16 (default) or float32")
    parser.add_argument(
        "--no-drafts", action="store_const", const=False, dest="drafts", help="never guess tokens ahead"
    )
    parser.add_argument("--memory", metavar="SIZE", help="most memory for the models, e.g. 4GiB")
    parser.add_argument(
        "--engine", metavar="ENGINE", help="windlass (default), or vllm on a machine with a GPU"
    )
    parser.add_argument(
        "--engine-args", metavar="OPTIONS", help="further options of `vllm serve`, in one text"
    )
    parser.add_argument(
        "--engine-executable", metavar="PATH", help="the vLLM program (default: vllm on PATH)"
    )
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object once it answers")
    parser.set_defaults(run=run)


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 takes a free one (default: 8000)")


def serve_of(args: argparse.Namespace) -> Serve:
    """Read the options of a service, with the job file's own checks."""
    given = {key: getattr(args, key, None) for key in Serve.model_fields}
    return parse(Serve, {key: value for key, value in given.items() if value is not None}, "serve")


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    offer, versions = offer_of(home, args.model, args.adapter, serve_of(args))
    run_service(home, offer, versions, as_json=args.json)
    return 0


def offer_of(
    home: Path, models: Sequence[str], adapters: Sequence[str], serve: Serve
) -> tuple[Offer, list[Version]]:
    """Find what is to be served; return it with the registered versions among it."""
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
    return Offer(first.name, first.model, serve, first.aliases, first.adapters, tuple(others)), versions


def read_adapter(text: str, models: Sequence[str]) -> tuple[str, str, str]:
    """Read [MODEL:]NAME=ADAPTER; a model may be given without its version."""
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


def run_service(home: Path, offer: Offer, versions: Sequence[Version], *, as_json: bool) -> None:
    """Serve until interrupted."""
    line = ProgressLine(quiet=as_json)
    names = [item.name for item in offer.items]
    line.say(f"loading {', '.join(names)}")
    with contextlib.ExitStack() as stack:
        for version in versions:
            stack.enter_context(Registry(home).holding(version))
        service = stack.enter_context(Service(offer, home / "logs"))
        signal.signal(signal.SIGTERM, _interrupt)
        if as_json:
            print_json({"url": service.url, "model": offer.name, "models": names})
        else:
            print(f"serving {', '.join(names)} at {service.url} (Ctrl-C stops)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            service.watch(line.say)
        line.say("stopping")


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
