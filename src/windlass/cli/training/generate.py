"""`windlass generate`: continue a text."""

from __future__ import annotations

import argparse
import sys

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json
from windlass.registry.versions import resolve_model
from windlass.sdk import Client
from windlass.spec.serve import Serve
from windlass.supervisor.service_spec import ServiceSpec
from windlass.supervisor.supervisor import Supervisor

EPILOG = """\
examples:
  windlass generate shakespeare-char --prompt "To be, or"
  echo "def main(" | windlass generate up --prompt - --tokens 100 --temperature 0
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("model", metavar="MODEL", help="NAME, NAME@VERSION, NAME@ALIAS or a model directory")
    parser.add_argument("--prompt", required=True, help="text to continue; - reads it from standard input")
    parser.add_argument("--tokens", type=int, default=64, help="max tokens to generate (default: 64)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0 always takes the most likely token (default: 0.8)"
    )
    parser.add_argument("--top-p", type=float, default=1.0, help="sample from this share of the probability")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same text (default: 1)")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    home = home_of(args)
    name, path, _ = resolve_model(home, args.model)
    prompt = sys.stdin.read().rstrip("\n") if args.prompt == "-" else args.prompt
    options = {
        "max_tokens": args.tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.seed,
    }
    with (
        Supervisor(ServiceSpec(name, path, Serve(port=0, slots=1, open=True)), home / "logs") as service,
        Client(service.url) as client,
    ):
        if args.json:
            print_json({"model": name, "prompt": prompt, "text": client.complete(prompt, **options).text})
            return 0
        print(prompt, end="", flush=True)
        for piece in client.stream(prompt, **options):
            print(piece, end="", flush=True)
        print()
    return 0
