"""Lowers the priority of background threads."""

from __future__ import annotations

import os
import sys
import threading

NICENESS = 5
"""About a third of a core when all are busy: at 15 a checkpoint of 1.3 GB took longer than the time to the
next one."""


def lower_priority() -> None:
    """Lower the priority of the calling thread.

    On Linux every thread has its own niceness; elsewhere it is that of the process, so nothing happens there.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
