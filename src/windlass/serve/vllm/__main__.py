"""The process: `python -m windlass.serve.vllm --model DIR --name NAME --socket PATH ...`.

It starts a vLLM server, waits until that answers, then listens: a client that can connect finds it ready. It
ends on SIGTERM or SIGINT, when its parent process is gone, and when vLLM ends; vLLM never outlives it. A
failed start prints one line of JSON to standard output and exits non-zero.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

from windlass.serve.vllm.bridge import Bridge
from windlass.serve.vllm.child import VllmCommand, VllmProcess, find_executable, split_options, start
from windlass.spec.errors import BadInput, NotFound
from windlass.spec.native_config import is_own
from windlass.spec.protocol.entrypoint import EntrypointParser, named_path, run_entrypoint
from windlass.spec.protocol.wire import Ready

ENCODERS = {"bert"}


def main(argv: list[str]) -> int:
    """Serve until a signal asks to stop."""
    args = _parser().parse_args(argv)
    command = VllmCommand(
        executable=args.executable,
        model=args.model,
        name=args.name,
        slots=args.slots,
        adapters=dict(args.adapter),
        rank=max((_rank(path) for _, path in args.adapter), default=0),
        extra=split_options(args.engine_args),
    )
    find_executable(command.executable)
    config = _read(args.model / "config.json")
    if config.get("model_type") in ENCODERS:
        raise BadInput(
            f"{args.model}: a {config['model_type']} model generates no text, which --engine vllm is for",
            hint="serve it without --engine vllm",
        )
    if is_own(config):
        raise BadInput(
            f"{args.model}: vLLM does not support {config['model_type']} models",
            hint="serve it without --engine vllm",
        )
    asyncio.run(_serve(command, config, args.socket))
    return 0


async def _serve(command: VllmCommand, config: dict[str, Any], path: Path) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    child = await start(command)
    try:
        about = await _or_stop(stopping, child.until_ready())
        if about is not None:
            await _run(Bridge(child, _ready(command, config, about)), child, path, stopping)
    finally:
        await child.stop()


async def _run(bridge: Bridge, child: VllmProcess, path: Path, stopping: asyncio.Event) -> None:
    server = await bridge.listen(path)
    load = asyncio.create_task(bridge.send_load())
    try:
        await _or_stop(stopping, child.ended())
        if not stopping.is_set():
            child.check()
    finally:
        load.cancel()
        server.close()
        path.unlink(missing_ok=True)


async def _or_stop(stopping: asyncio.Event, work: Any) -> Any:
    """Return the result of the work, or None if a signal asks to stop before it is done."""
    working, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopped):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(task, return_exceptions=True)


def _ready(command: VllmCommand, config: dict[str, Any], about: dict[str, Any]) -> Ready:
    """Describe the model to gateways: sizes from config.json, the context from vLLM itself."""
    text = config.get("text_config") or config
    return Ready(
        model=command.name,
        family=str(config.get("model_type", "unknown")),
        parameters=0,
        context=int(about.get("max_model_len") or text.get("max_position_embeddings") or text["n_positions"]),
        vocabulary=int(text["vocab_size"]),
        width=int(text.get("hidden_size") or text["n_embd"]),
        slots=command.slots,
        process=os.getpid(),
        precision=str(config.get("dtype") or config.get("torch_dtype") or "auto"),
        adapters=list(command.adapters),
        engine="vllm",
    )


def _rank(adapter: Path) -> int:
    rank = _read(adapter / "adapter_config.json").get("r")
    if not isinstance(rank, int) or rank < 1:
        raise BadInput(f"{adapter / 'adapter_config.json'}: 'r' is {rank}; it must be the rank, 1 or more")
    return rank


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except ValueError as error:
        raise BadInput(f"{path}: is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadInput(f"{path}: must hold a JSON object")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = EntrypointParser(prog="python -m windlass.serve.vllm")
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--name", required=True, help="name of the model")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to listen on")
    parser.add_argument("--slots", type=int, default=256, help="max requests computed together")
    parser.add_argument("--adapter", type=named_path, action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--executable", default="vllm", help="the vLLM program (default: found on PATH)")
    parser.add_argument("--engine-args", default="", help="further options of `vllm serve`, in one text")
    return parser


if __name__ == "__main__":
    run_entrypoint(main)
