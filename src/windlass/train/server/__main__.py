"""Entry points of a run on parameter servers: `python -m windlass.train.server serve|work FOLDER ...`.

Events go to standard output as JSON lines (see spec.protocol.entrypoint). On SIGTERM the primary saves and
ends the run, and a worker leaves after its task. The other servers ignore it and run until they are killed:
their state is in their logs, and the primary may still need them for a save.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from windlass.spec.errors import WindlassError
from windlass.spec.protocol.entrypoint import (
    INTERRUPTED,
    EntrypointParser,
    emit,
    end_after_parent,
    error_event,
    run_entrypoint,
)
from windlass.spec.protocol.rank import ORPHAN_GRACE_S, RankInfo, add_member, apply_affinity, member_of
from windlass.spec.protocol.server_registry import CANNOT_FOLLOW

STACK_BYTES = 1 << 20
POLL_EVERY_S = 0.1


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.train.server")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=EntrypointParser)
    serve = commands.add_parser("serve")
    serve.add_argument("--host", default="127.0.0.1")
    work = commands.add_parser("work")
    for command in (serve, work):
        command.add_argument("folder", type=Path)
        add_member(command)
    args = parser.parse_args(argv)
    end_after_parent(ORPHAN_GRACE_S)
    stop_signal = _StopSignal()
    if args.command == "serve":
        return _serve(args.folder, args.rank, args.host, stop_signal)
    return _work(args.folder, member_of(args), stop_signal)


class _StopSignal:
    """True once this process has received SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self._requested = False
        signal.signal(signal.SIGTERM, self._request)
        signal.signal(signal.SIGINT, self._request)

    def __call__(self) -> bool:
        return self._requested

    def _request(self, _signal: int, _frame: object) -> None:
        self._requested = True


def _work(folder: Path, member: RankInfo, stop_signal: _StopSignal) -> int:
    apply_affinity(RankInfo(cores=member.cores))
    from windlass.train.loop import load_run
    from windlass.train.server.stages import work

    run = load_run(folder)
    work(folder, run, f"worker {member.rank}", len(member.cores) or run.threads, stop_signal)
    return INTERRUPTED if stop_signal() else 0


def _serve(folder: Path, number: int, host: str, stop_signal: _StopSignal) -> int:
    import torch

    from windlass.train.event_log import EventLog
    from windlass.train.loop import load_run
    from windlass.train.server.stages import drop_event, open_shard, stage_of

    torch.set_num_threads(1)  # updates are bound by memory; the cores are for the workers
    torch.set_flush_denormal(True)
    run, record = load_run(folder), EventLog(folder, rank=number)
    try:
        while True:
            stage = stage_of(run, folder)
            shard = open_shard(stage, run, folder, number, record.emit if number == 0 else drop_event)
            if number:
                _run_follower(folder, run, number, host, shard)
                continue
            code = _run_primary(folder, run, record, shard, host, stop_signal)
            if code or stage_of(run, folder) == stage:
                return code
    finally:
        record.close()


def _run_follower(folder: Path, run: Any, number: int, host: str, shard: Any) -> None:
    """Serve until the run enters another stage; at the last stage the parent kills this process."""
    from windlass.train.server.rpc_server import open_rpc_server
    from windlass.train.server.stages import stage_of

    shard.restore()
    rpc_server = open_rpc_server(folder, number, host, shard, run.job.sync.servers)
    rpc_server.failed = _fail
    while stage_of(run, folder) == shard.part.stage:
        time.sleep(POLL_EVERY_S)
    rpc_server.close()
    shard.close(0.0)


def _run_primary(folder: Path, run: Any, record: Any, shard: Any, host: str, stop_signal: _StopSignal) -> int:
    from windlass.train.server.peers import CannotFollow
    from windlass.train.server.rpc_server import open_rpc_server
    from windlass.train.server.stages import open_primary

    primary = open_primary(run, folder, record, shard)
    rpc_server = open_rpc_server(folder, 0, host, shard, run.job.sync.servers, primary)
    rpc_server.failed = _fail
    try:
        return 0 if primary.loop(stop_signal) == "finished" else INTERRUPTED
    except CannotFollow as error:
        record.emit("warning", message=error.message)
        return CANNOT_FOLLOW
    finally:
        primary.end()
        rpc_server.close()


def _fail(error: BaseException) -> None:
    """End this process because of an error in a thread of the RPC server."""
    assert isinstance(error, WindlassError)
    emit({"error": error_event(error)})
    sys.stdout.flush()
    os._exit(error.exit_code)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    run_entrypoint(main)
