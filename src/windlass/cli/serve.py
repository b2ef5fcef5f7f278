"""`windlass serve`: answer over HTTP, as OpenAI's API does."""

from __future__ import annotations

import argparse
import contextlib
import signal
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import ProgressLine, print_json
from windlass.operate.registry import Registry, Version, resolve_model
from windlass.operate.service import Offer, Service
from windlass.spec.job import Serve
from windlass.spec.read import parse

EPILOG = """\
examples:
  windlass serve shakespeare-char
  windlass serve shakespeare-char@2 --port 9000
  curl http://127.0.0.1:8000/v1/completions -H 'content-type: application/json' \\
       -d '{"model": "shakespeare-char", "prompt": "To be", "max_tokens": 20}'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="NAME, NAME@VERSION, NAME@ALIAS or a model directory")
    add_address(parser)
    parser.add_argument("--slots", type=int, help="requests computed together (default: 16)")
    parser.add_argument("--queue", type=int, help="requests that may wait (default: 256)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object once it answers")
    parser.set_defaults(run=run)


def add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 takes a free one (default: 8000)")


def serve_of(args: argparse.Namespace) -> Serve:
    """Read the options of a service, with the job file's own checks."""
    given = {key: getattr(args, key, None) for key in ("host", "port", "slots", "queue", "threads")}
    return parse(Serve, {key: value for key, value in given.items() if value is not None}, "serve")


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    name, path, version = resolve_model(home, args.model)
    aliases = version.aliases if version else ()
    run_service(home, Offer(name, path, serve_of(args), aliases), version, as_json=args.json)
    return 0


def run_service(home: Path, offer: Offer, version: Version | None, *, as_json: bool) -> None:
    """Serve until interrupted."""
    line = ProgressLine(quiet=as_json)
    line.say(f"loading {offer.name}")
    with contextlib.ExitStack() as stack:
        if version is not None:
            stack.enter_context(Registry(home).holding(version))
        service = stack.enter_context(Service(offer, home / "logs"))
        signal.signal(signal.SIGTERM, _interrupt)
        if as_json:
            print_json({"url": service.url, "model": offer.name})
        else:
            print(f"serving {offer.name} at {service.url} (Ctrl-C stops)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            service.watch(line.say)
        line.say("stopping")


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
