"""Waits until the limits of a tenant's process are applied, then executes its command.

    python -I -S sandbox_exec.py LIMITS -- COMMAND

It already runs as the tenant's user. It lowers its limits ("core=0,nproc=64"), sets no_new_privs, waits for a
line on standard input, and executes the command. The supervisor moves it into its control group before it
sends that line. It is run by its path and needs only the standard library.
"""

import ctypes
import os
import resource
import sys
from contextlib import suppress

_PR_SET_NO_NEW_PRIVS = 38
NOT_RELEASED = 125


def main(limits: str, command: list[str]) -> None:
    for limit in filter(None, limits.split(",")):
        name, _, amount = limit.partition("=")
        what = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(what)[1]
        value = int(amount) if hard == resource.RLIM_INFINITY else min(int(amount), hard)
        resource.setrlimit(what, (value, value))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.read(0, 1) != b"\n":
        os._exit(NOT_RELEASED)
    with suppress(OSError):  # it exists, or cannot be created: then its user reports it
        os.mkdir(os.environ["TMPDIR"], 0o700)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3:])
