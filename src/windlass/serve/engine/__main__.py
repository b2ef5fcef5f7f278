"""The engine's process: `python -m windlass.serve.engine --model DIR --name NAME --socket PATH`.

It loads and checks the model, then listens: a client that can connect finds it ready. (Of several models
none is loaded before it listens.) It ends on SIGTERM or SIGINT and when its parent process is gone. A failed
start prints one line of JSON to standard output, {"error": {"kind", "message", "hint"}}, and exits non-zero.
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
    """Serve until a signal asks to stop."""
    # Read before the model is loaded: loading takes seconds in which the parent may die.
    parent = os.getppid()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="engine: %(message)s")
    server = _start(_parser().parse_args(argv), parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.run()
    return 0


def _start(args: argparse.Namespace, parent: int) -> Server:
    from windlass.serve.engine.build import build_engine
    from windlass.serve.engine.server import Server

    engine, offered = build_engine(args)
    return Server(engine, offered, args.slots, args.socket, parent=parent)


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.serve.engine")
    add = parser.add_argument
    add("--model", type=Path, required=True, action="append", help="directory of a model; may be repeated")
    add("--name", required=True, action="append", help="name of that model; one for each --model")
    add("--adapter", action="append", default=[], help="MODEL:NAME=DIR, a LoRA adapter of a model")
    add("--socket", type=Path, required=True, help="Unix socket to listen on")
    add("--slots", type=_positive, default=32, help="max requests computed together")
    add("--threads", type=_positive, help="CPU threads (default: all cores)")
    add("--memory", type=_positive, help="max bytes of all models together")
    add("--precision", choices=PRECISIONS, help="precision of the weights (default: as stored)")
    add("--runner", choices=("auto", "native", "torch"), default="auto", help="backend that computes")
    add("--keys-memory", type=_positive, help="bytes for keys and values of each model")
    add("--keys", choices=("float16", "float32"), default="float16", help="precision of keys and values")
    add(
        "--prefix-cache",
        choices=("lru", "lfu", "off"),
        default="lru",
        help="eviction policy of cached prefixes",
    )
    add("--no-drafts", action="store_true", help="no speculative decoding")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    run_entrypoint(main)
