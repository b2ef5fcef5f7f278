"""The engine's process: `python -m windlass.serve.engine --model DIR --name NAME --socket PATH`.

It loads and checks the model (of several, the first), then listens; whoever can connect finds it ready.
It ends on SIGTERM or SIGINT and when the process that started it is gone. A start that fails is told as
one line of JSON on standard output, {"error": {"kind", "message", "hint"}}, and by the exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.spec.protocol.entrypoint import EntrypointParser, run_entrypoint

if TYPE_CHECKING:
    from windlass.serve.engine.server import Server


PRECISIONS = ("float32", "bfloat16", "int8", "int4")


def main(argv: list[str]) -> int:
    """Serve until told to stop."""
    # Asked before the model is loaded, which may take seconds in which the parent may die.
    parent = os.getppid()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="engine: %(message)s")
    server = _start(_parser().parse_args(argv), parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.run()
    return 0


def _start(args: argparse.Namespace, parent: int) -> Server:
    from windlass.serve.engine.build import open_station
    from windlass.serve.engine.server import Server

    station, offered = open_station(args)
    return Server(station, offered, args.slots, args.socket, parent=parent)


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.serve.engine")
    add = parser.add_argument
    add("--model", type=Path, required=True, action="append", help="directory of a model; may be repeated")
    add("--name", required=True, action="append", help="what that model is called")
    add("--adapter", action="append", default=[], help="MODEL:NAME=DIR, a LoRA adapter of a model")
    add("--socket", type=Path, required=True, help="Unix socket to listen on")
    add("--slots", type=_positive, default=32, help="requests computed together")
    add("--threads", type=_positive, help="CPU threads; all cores if left out")
    add("--memory", type=_positive, help="bytes that the models may take together")
    add("--precision", choices=PRECISIONS, help="of the weights; as stored if left out")
    add("--runner", choices=("auto", "native", "torch"), default="auto", help="what computes")
    add("--keys-memory", type=_positive, help="bytes for keys and values of each model")
    add("--keys", choices=("float16", "float32"), default="float16", help="how keys and values are kept")
    add("--prefix-cache", choices=("lru", "lfu", "off"), default="lru", help="which known prefixes go first")
    add("--no-drafts", action="store_true", help="never guess tokens ahead")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    run_entrypoint(main)
