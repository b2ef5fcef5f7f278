"""The doors of a run on parameter servers: `python -m windlass.train.server serve|work FOLDER ...`.

Events go to standard output as JSON lines (see spec.protocol.entrypoint). SIGTERM lets the first server save
and end the run, and a worker leave after its task; the other servers stay until they are killed, for what
they have is written down and somebody may want to save it.
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
LOOK_EVERY_S = 0.1


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.train.server")
    doors = parser.add_subparsers(dest="door", required=True, parser_class=EntrypointParser)
    serve = doors.add_parser("serve")
    serve.add_argument("--host", default="127.0.0.1")
    work = doors.add_parser("work")
    for door in (serve, work):
        door.add_argument("folder", type=Path)
        add_member(door)
    args = parser.parse_args(argv)
    end_after_parent(ORPHAN_GRACE_S)
    asked = _Asked()
    if args.door == "serve":
        return _serve(args.folder, args.rank, args.host, asked)
    return _work(args.folder, member_of(args), asked)


class _Asked:
    """Whether this process was asked to end."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, self._ask)

    def __call__(self) -> bool:
        return self._asked

    def _ask(self, _signal: int, _frame: object) -> None:
        self._asked = True


def _work(folder: Path, member: RankInfo, asked: _Asked) -> int:
    apply_affinity(RankInfo(cores=member.cores))
    from windlass.train.loop import load_run
    from windlass.train.server.employment import work

    run = load_run(folder)
    work(folder, run, f"worker {member.rank}", len(member.cores) or run.threads, asked)
    return INTERRUPTED if asked() else 0


def _serve(folder: Path, number: int, host: str, asked: _Asked) -> int:
    import torch

    from windlass.train.event_log import EventLog
    from windlass.train.loop import load_run
    from windlass.train.server.stages import open_shard, stage_of, untold

    torch.set_num_threads(1)  # an update reads and writes; the cores are for those who compute
    torch.set_flush_denormal(True)
    run, record = load_run(folder), EventLog(folder, rank=number)
    try:
        while True:
            stage = stage_of(run, folder)
            shard = open_shard(stage, run, folder, number, record.tell if number == 0 else untold)
            if number:
                _follow(folder, run, number, host, shard)
                continue
            code = _lead(folder, run, record, shard, host, asked)
            if code or stage_of(run, folder) == stage:
                return code
    finally:
        record.close()


def _follow(folder: Path, run: Any, number: int, host: str, shard: Any) -> None:
    """Be a server until the run comes to another stage; whoever started this process ends it at the last."""
    from windlass.train.server.rpc_server import open_hall
    from windlass.train.server.stages import stage_of

    shard.restore()
    hall = open_hall(folder, number, host, shard, run.job.sync.servers)
    hall.failed = _fail
    while stage_of(run, folder) == shard.part.stage:
        time.sleep(LOOK_EVERY_S)
    hall.close()
    shard.close(0.0)


def _lead(folder: Path, run: Any, record: Any, shard: Any, host: str, asked: _Asked) -> int:
    from windlass.train.server.peers import CannotFollow
    from windlass.train.server.rpc_server import open_hall
    from windlass.train.server.stages import open_chief

    chief = open_chief(run, folder, record, shard)
    hall = open_hall(folder, 0, host, shard, run.job.sync.servers, chief)
    hall.failed = _fail
    try:
        return 0 if chief.loop(asked) == "finished" else INTERRUPTED
    except CannotFollow as error:
        record.tell("warning", message=error.message)
        return CANNOT_FOLLOW
    finally:
        chief.end()
        hall.close()


def _fail(error: BaseException) -> None:
    """End this process for an error that a thread of the hall has met."""
    assert isinstance(error, WindlassError)
    emit({"error": error_event(error)})
    sys.stdout.flush()
    os._exit(error.exit_code)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    run_entrypoint(main)
