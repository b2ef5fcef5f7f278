"""The control API as a process of a service.

    python -m windlass.control.api.control_process --home H --socket S --key F

It answers gateways only, on a Unix socket and with a key from a file, because every user of a machine can
read command lines. On standard output it writes one line of JSON: {"listening": {"socket": S}}, or
{"error": {"kind", "message", "hint"}}. It ends with the service.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from windlass.control.api.control_keys import GatewayKey
from windlass.control.api.control_server import serve_gateways
from windlass.spec.processes import CONTROL_API
from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint


def main(argv: list[str]) -> int:
    """Serve until stopped; return the exit code."""
    args = _parse(argv)
    listening = {"listening": {"socket": str(args.socket)}}
    serve_gateways(args.home, args.socket, GatewayKey(args.key.read_text()), lambda: emit(listening))
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = EntrypointParser(prog=CONTROL_API, description="Control runs and models.")
    parser.add_argument("--home", type=Path, required=True, help="whose runs and models")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="the gateways' key")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run_entrypoint(main)
