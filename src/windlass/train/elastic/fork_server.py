"""Starts workers fast: `python -m windlass.train.elastic.fork_server FOLDER --node N --host H`.

Loading torch takes seconds; a process that has loaded it forks in milliseconds. So this one loads everything,
computes nothing, has no threads, and forks a worker for each request on its standard input:

    agent -> fork server   {"start": worker}
    fork server -> agent   {"ready": true} | {"started": worker, "pid": p} | {"exited": worker, "code": c}

A worker outlives the fork server, but not its agent: each holds the read end of the agent's pipe and sees
when the write end is closed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import select
import selectors
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from windlass.spec.protocol.entrypoint import EntrypointParser, emit, run_entrypoint
from windlass.spec.protocol.rank import ORPHAN_GRACE_S
from windlass.spec.run import RUN_FILE, Run
from windlass.store.store_dir import load_library

ENTRY = "windlass.train.elastic.worker:work"
READ_BYTES = 1 << 16

Work = Callable[[Path, str, str, str, tuple[int, ...]], int]


def main(argv: list[str]) -> int:
    parser = EntrypointParser(prog="python -m windlass.train.elastic.fork_server")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--node", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--entry", default=ENTRY, help="MODULE:FUNCTION that is a worker")
    args = parser.parse_args(argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, function = args.entry.partition(":")
    work: Work = getattr(importlib.import_module(module), function)
    _load_libraries(args.folder / RUN_FILE)
    emit({"ready": True})
    ForkServer(args, work).run()
    return 0


def _load_libraries(file: Path) -> None:
    """Load the client libraries of the run's stores, so that workers need not."""
    with contextlib.suppress(OSError, ValueError):  # a worker reports what is wrong
        job = Run.model_validate_json(file.read_bytes()).job
        for url in (job.checkpoint.store, job.corpus.store):
            if url is not None:
                load_library(url)


class ForkServer:
    """Forks and reaps workers until the agent closes the pipe."""

    def __init__(self, args: argparse.Namespace, work: Work) -> None:
        self._args, self._work = args, work
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._children: dict[int, tuple[int, str]] = {}
        """Process id and worker by descriptor of the process."""
        self._line = b""

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fd != 0:
                    self._reap(key.fd)
                elif not self._read():
                    return

    def _read(self) -> bool:
        """Handle requests; return False when the agent is gone."""
        part = os.read(0, READ_BYTES)
        *lines, self._line = (self._line + part).split(b"\n")
        for line in lines:
            self._start(str(json.loads(line)["start"]))
        return bool(part)

    def _start(self, worker: str) -> None:
        log = self._args.folder / "logs" / f"worker-{worker}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        pid = os.fork()
        if pid == 0:
            self._be(worker, log)
        descriptor = os.pidfd_open(pid)
        self._children[descriptor] = (pid, worker)
        self._selector.register(descriptor, selectors.EVENT_READ)
        emit({"started": worker, "pid": pid})

    def _reap(self, descriptor: int) -> None:
        pid, worker = self._children.pop(descriptor)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        emit({"exited": worker, "code": os.waitstatus_to_exitcode(status)})

    def _be(self, worker: str, log: Path) -> None:
        """Run the worker in the forked process; never returns."""
        code = 1
        try:
            self._selector.close()
            for descriptor in self._children:
                os.close(descriptor)
            _settle(log)
            cores = tuple(sorted(os.sched_getaffinity(0)))
            code = self._work(self._args.folder, worker, self._args.node, self._args.host, cores)
        except BaseException:  # noqa: BLE001  the entry point of a process: its log must say why it ended
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _settle(log: Path) -> None:
    """Detach from the fork server: own session, own log, and a thread that watches the agent."""
    os.setsid()
    lifeline = os.dup(0)
    null, written = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((null, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(written)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_after_agent, args=(lifeline,), name="lifeline", daemon=True).start()


def _end_after_agent(lifeline: int) -> None:
    """Terminate this process once the agent is gone; kill it after a grace period, as it may be blocked."""
    watch = select.poll()
    watch.register(lifeline, 0)  # nothing but the other end's closing
    watch.poll()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    run_entrypoint(main)
