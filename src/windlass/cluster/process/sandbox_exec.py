"""Where a tenant's process waits until it is held to its limits: `python -I -S sandbox_exec.py LIMITS -- COMMAND`.

It is already the tenant's user, so it can take nothing but less: it lowers its limits ("core=0,nproc=64"),
gives up ever gaining rights by what it executes, waits for a line on standard input, and becomes the
command. Whoever should send that line puts it into its control group first. It runs by its path and needs
nothing but Python's own library.
"""

import ctypes
import os
import resource
import sys
from contextlib import suppress

_PR_SET_NO_NEW_PRIVS = 38
NOBODY_CAME = 125


def main(limits: str, command: list[str]) -> None:
    for limit in filter(None, limits.split(",")):
        name, _, amount = limit.partition("=")
        what = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(what)[1]
        most = int(amount) if hard == resource.RLIM_INFINITY else min(int(amount), hard)
        resource.setrlimit(what, (most, most))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.read(0, 1) != b"\n":
        os._exit(NOBODY_CAME)
    with suppress(OSError):  # it is there, or cannot be: then whoever needs it says so
        os.mkdir(os.environ["TMPDIR"], 0o700)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[3:])
