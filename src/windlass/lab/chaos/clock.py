"""Shifts the time of day for the processes of a run only.

A small library, compiled here and loaded into every process of a node, adds an offset from a file to the time
of day. CLOCK_MONOTONIC is left alone, as it is when the clock of a machine is set. libfaketime, which does
this and much more, breaks sleeping by the monotonic clock (0.9.10).
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from windlass.spec.errors import ProcessFailed

SECONDS = struct.Struct("=q")
VARIABLE = "WINDLASS_CHAOS_CLOCK"
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead_s;
static int (*true_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WINDLASS_CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    true_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED) ahead_s = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!true_gettime) true_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = true_gettime(clock, now);
    int of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!failed && ahead_s && of_day) now->tv_sec += *ahead_s;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *kept) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (kept) *kept = precise.tv_sec;
    return precise.tv_sec;
}
"""


def find_compiler() -> str | None:
    return next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)


class Clocks:
    """One clock per node."""

    def __init__(self, folder: Path, nodes: Sequence[str], compiler: str) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._library = folder / "clock.so"
        _compile(compiler, folder / "clock.c", self._library)
        for node in nodes:
            self._file(node).write_bytes(SECONDS.pack(0))

    def put(self, node: str, ahead_s: int) -> None:
        """Set a clock `ahead_s` seconds ahead of the true time; the processes have the file mapped."""
        with self._file(node).open("r+b", buffering=0) as file:
            file.write(SECONDS.pack(ahead_s))

    def environment(self, node: str) -> dict[str, str]:
        """Return the environment variables that make a process use the node's clock."""
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(self._file(node))}

    def _file(self, node: str) -> Path:
        return self._folder / f"clock-{node}"


def _compile(compiler: str, source: Path, library: Path) -> None:
    source.write_text(SOURCE)
    words = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProcessFailed("the library that sets clocks cannot be compiled", hint=done.stderr[-1000:])
