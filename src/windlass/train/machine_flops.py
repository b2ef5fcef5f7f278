"""Measures the machine's peak FLOP/s with float32 matrix products."""

from __future__ import annotations

import time
from functools import cache

import torch

WIDTH = 2048
MIN_S = 0.4


def peak_flops(device: torch.device, *, min_s: float = MIN_S) -> float:
    """Return the best rate of a large matrix product, in FLOP/s; noise only slows one down."""
    a = torch.randn(WIDTH, WIDTH, device=device)
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < min_s or best == float("inf"):
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2.0 * WIDTH**3 / best


@cache
def known_peak(device: torch.device) -> float:
    """Return the peak as measured once by this process, so that later generations need not wait for it."""
    return peak_flops(device)
