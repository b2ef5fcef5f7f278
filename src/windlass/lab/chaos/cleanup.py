"""Removes what a killed chaos experiment left behind: processes, namespaces, small disks.

Everything carries the id of the process that made it; resources of a running experiment are left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path

import psutil

from windlass.lab.chaos.disk import mounted, unmount
from windlass.lab.chaos.environment import PROCESSES
from windlass.lab.chaos.network import PREFIX, networks, processes_in, remove_network


def clean(home: Path) -> list[str]:
    """Remove leftovers; return a description of each."""
    removed: list[str] = []
    folders = [path for path in (home / "chaos").glob("*") if path.name.isdigit() and _gone(int(path.name))]
    for folder in folders:
        removed += [f"process {pid}" for pid in _end_noted(folder / PROCESSES)]
    if os.geteuid() == 0:
        removed += _clean_networks() + _clean_disks()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(str(folder))
    return removed


def _clean_networks() -> list[str]:
    found = [name for name in sorted(networks()) if _gone(int(name.removeprefix(PREFIX)))]
    for name in found:
        for pid in processes_in(name):
            _end(psutil.Process(pid))
        remove_network(name)
    return [f"network {name}" for name in found]


def _clean_disks() -> list[str]:
    found = [path for path, owner in mounted().items() if _gone(owner)]
    for path in found:
        unmount(path)
    return [f"disk on {path}" for path in found]


def _end_noted(file: Path) -> list[int]:
    """End the launchers of an experiment and their descendants, unless the process id was reused."""
    ended = []
    for pid, born in json.loads(file.read_text()) if file.exists() else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if abs(process.create_time() - born) < 1:
                for one in (*process.children(recursive=True), process):
                    _end(one)
                ended.append(pid)
    return ended


def _end(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        process.wait(5)


def _gone(pid: int) -> bool:
    """Whether the process of an experiment has ended; its id may have been reused.

    A process that is just starting has no command line yet, and may become an experiment.
    """
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return True
    return bool(words) and not any("windlass" in word for word in words)
