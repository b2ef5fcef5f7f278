"""The engine's process: `python -m windlass.serve.engine --model DIR --name NAME --socket PATH --slots N`.

It loads and checks the model, then listens; whoever can connect finds it ready. It ends on SIGTERM or
SIGINT and when the process that started it is gone. A start that fails is told as one line of JSON on
standard output, {"error": {"kind", "message", "hint"}}, and by the exit code.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.spec.door import DoorParser, run_door

if TYPE_CHECKING:
    from windlass.serve.engine.server import Server


def main(argv: list[str]) -> int:
    """Serve until told to stop."""
    # Asked before torch is loaded, which takes seconds in which the parent may die.
    parent = os.getppid()
    server = _start(_parser().parse_args(argv), parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.run()
    return 0


def _start(args: argparse.Namespace, parent: int) -> Server:
    import torch

    from windlass.models.huggingface import load_model
    from windlass.serve.engine.server import Server
    from windlass.serve.engine.step import Engine

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # CPUs multiply float32 fastest; a GPU takes the weights as they are stored.
    model = load_model(args.model, device=device, dtype=torch.float32 if device == "cpu" else None)
    return Server(Engine(model, slots=args.slots), args.name, args.socket, parent=parent)


def _parser() -> argparse.ArgumentParser:
    parser = DoorParser(prog="python -m windlass.serve.engine")
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--name", required=True, help="what the model is called")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--slots", type=_positive, default=16, help="requests computed together")
    parser.add_argument("--threads", type=_positive, help="CPU threads; all cores if left out")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


if __name__ == "__main__":
    run_door(main)
