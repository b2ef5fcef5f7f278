"""A member of a group that does what its arguments say, then ends.

sleep          until it is told to end, which it does at once
exit CODE      at once
until F CODE   ends once F is there
fail TIMES F   its first TIMES starts, which it counts in directory F; then it sleeps
deaf           sleeps, and does not listen
child F        starts a process, leaves its number in F and sleeps
eat MIB        takes that much memory, then sleeps
tell F         leaves its environment and cores in F-INDEX, then sleeps
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from windlass.spec.protocol.entrypoint import emit, run_entrypoint


def main(argv: list[str]) -> int:
    deed, rest = argv[0], argv[1:]
    index = os.environ["WINDLASS_INDEX"]
    emit({"event": "began", "index": index})
    sys.stderr.write(f"member {index} speaks\n")
    if deed == "exit":
        return int(rest[0])
    if deed == "nap":
        time.sleep(float(rest[0]))
        return int(rest[1])
    if deed == "until":
        while not Path(rest[0]).exists():
            time.sleep(0.01)
        return int(rest[1])
    if deed == "fail":
        starts = Path(rest[1]) / f"starts-{index}"
        count = int(starts.read_text()) + 1 if starts.exists() else 1
        starts.write_text(str(count))
        if count <= int(rest[0]):
            return 1
    if deed == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if deed == "child":
        Path(rest[0]).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    if deed == "eat":
        eaten = bytearray(int(rest[0]) << 20)
        eaten[::4096] = b"x" * len(eaten[::4096])
    if deed == "tell":
        told = {"cores": sorted(os.sched_getaffinity(0)), "env": dict(os.environ), "pid": os.getpid()}
        whole = Path(f"{rest[0]}-{index}.part")
        whole.write_text(json.dumps(told))
        whole.rename(f"{rest[0]}-{index}")
    while True:
        time.sleep(60)


if __name__ == "__main__":
    run_entrypoint(main)
