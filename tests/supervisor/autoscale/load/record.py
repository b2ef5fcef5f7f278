"""Writes the loads of this folder: requests that arrive in each second. Run it to write them again.

    python tests/supervisor/autoscale/load/record.py

Arrivals are drawn from a Poisson law whose rate is the shape of the load; the seed is fixed.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable
from pathlib import Path

SEED = 7
HOUR_S = 3600

SHAPES: dict[str, tuple[int, Callable[[int], float]]] = {
    # A day in an hour: nearly nothing at night, a long noon.
    "diurnal": (HOUR_S, lambda t: 0.3 + 7.0 * max(0.0, math.sin(math.pi * t / HOUR_S)) ** 2),
    # Every five minutes, twenty seconds of everybody.
    "burst": (HOUR_S, lambda t: 12.0 if 100 <= t % 300 < 120 else 0.8),
    # One day the load is another.
    "step": (HOUR_S, lambda t: 1.0 if t < 900 else 9.0 if t < 2700 else 1.0),
    # Forty times as much within ten seconds, and then it ebbs away.
    "flash_crowd": (HOUR_S, lambda t: 0.4 + (16.0 * math.exp(-(t - 600) / 300) if t >= 600 else 0.0)),
    # Around the edge between two numbers of replicas: the load that makes a bad policy flap.
    "edge": (HOUR_S, lambda t: 3.0 + 0.4 * math.sin(t / 9)),
}


def drawn(random_: random.Random, rate: float) -> int:
    """Draw from a Poisson law by counting exponential gaps."""
    count, at = 0, random_.expovariate(rate)
    while at < 1.0:
        count += 1
        at += random_.expovariate(rate)
    return count


def main() -> None:
    for name, (length_s, rate) in SHAPES.items():
        random_ = random.Random(f"{SEED}-{name}")
        with (Path(__file__).parent / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("second", "requests"))
            writer.writerows((second, drawn(random_, rate(second))) for second in range(length_s))


if __name__ == "__main__":
    main()
