"""`windlass bench gateway`: the gateway alone, compared with a bare application and LiteLLM's proxy."""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.cli.home import add_home, home_of
from windlass.cli.terminal import print_json, print_table
from windlass.lab.bench.contenders import PEERS_IN, default_folder, installed_peers
from windlass.lab.bench.gateway import LITELLM, GatewayBenchOptions, bench_gateway
from windlass.runs.progress_line import ProgressLine

DEFAULTS = GatewayBenchOptions()
EPILOG = """\
Our gateway in front of a mock engine, a bare Starlette application in front of the same, one with canned
answers, and LiteLLM's proxy in front of such a one take turns on one core; the client (wrk, from Debian's
packages) has the other. LiteLLM needs an environment made by bench/peers --only litellm; without it, LiteLLM
is left out. Three minutes.

examples:
  windlass bench gateway
  windlass bench gateway --rounds 1 --seconds 2 --no-litellm
  windlass bench gateway --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for option, whole, what in (
        ("--rounds", DEFAULTS.rounds, "rounds; the median is reported"),
        ("--seconds", DEFAULTS.seconds, "seconds of each turn"),
        ("--connections", DEFAULTS.connections, "connections that send small requests"),
        ("--streams", DEFAULTS.streams, "concurrent streams"),
        ("--idle", DEFAULTS.idle, "idle connections"),
    ):
        parser.add_argument(option, type=int, default=whole, metavar="N", help=f"{what} (default: {whole})")
    parser.add_argument("--no-litellm", action="store_true", help="leave LiteLLM out")
    parser.add_argument("--peers-in", type=Path, metavar="DIR", help=PEERS_IN)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_home(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    options = GatewayBenchOptions(args.rounds, args.seconds, args.connections, args.streams, args.idle)
    line = ProgressLine(quiet=args.json)
    found = [] if args.no_litellm else installed_peers(args.peers_in or default_folder())
    peer = next((peer for peer in found if peer.name == LITELLM), None)
    if peer is None and not args.no_litellm:
        line.say("LiteLLM is left out: bench/peers --only litellm makes its environment")
    result = bench_gateway(options, peer, home_of(args), line)
    line.close()
    if args.json:
        print_json(result)
    else:
        print_table(
            [(name, f"{value:,.4g}") for name, value in result["figures"].items()], ("figure", "value")
        )
    return 0
