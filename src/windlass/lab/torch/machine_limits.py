"""Measures the machine's peak FLOP/s and memory bandwidth, for comparison with a serving engine.

`python -m windlass.lab.torch.machine_limits` measures with torch and MKL, on all cores, and ends with
{"done": {"flops", "read_bytes_per_s"}}. Both are the best of many tries: noise only ever slows one down.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from windlass.spec.protocol.entrypoint import emit, run_entrypoint
from windlass.train.machine_flops import peak_flops

READ_BYTES = 1 << 29
"""Far larger than any cache."""
READ_TRIES = 6


def main(_: list[str]) -> None:
    emit({"done": {"flops": peak_flops(torch.device("cpu")), "read_bytes_per_s": read_bytes_per_s()}})


def read_bytes_per_s(size_bytes: int = READ_BYTES, tries: int = READ_TRIES) -> float:
    """Read a matrix from memory, by the faster of a sum and a matrix-vector product."""
    matrix = torch.ones(size_bytes // 4096, 1024)
    vector = torch.ones(1024)
    readers: list[Callable[[], Tensor]] = [lambda: matrix.sum(), lambda: torch.mv(matrix, vector)]
    best = float("inf")
    for _ in range(tries):
        for read in readers:
            began = time.perf_counter()
            read()
            best = min(best, time.perf_counter() - began)
    return size_bytes / best


if __name__ == "__main__":
    run_entrypoint(main)
