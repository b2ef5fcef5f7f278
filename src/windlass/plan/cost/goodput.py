"""The useful share of the time when devices fail, and how often to save.

Failures are a Poisson process: n devices fail n times as often as one. Between checkpoints a run works for
`interval`, then waits `stall` for the checkpoint; a failure costs `restart` and all work since the last whole
checkpoint. The expected time for a second of work is (Daly 2006, A higher order estimate of the optimum
checkpoint interval for restart dumps, doi:10.1016/j.future.2004.11.016, equation 20)

    M e^(restart/M) (e^((interval + stall)/M) - 1) / interval        M: mean time between failures of all

Its least value is where e^(x + stall/M) (x - 1) + 1 = 0 with x = interval/M. For a small stall that is
Young's sqrt(2 stall M) (1974, doi:10.1145/361147.361115); here the root is found, so it holds for any stall.

An elastic run keeps its state in the memory of the members that are left: it is the same formula with the
step for an interval, no stall, and the time to form a new generation for a restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windlass.spec.errors import BadInput

DEVICE_MTBF_S = 16384 * 54 * 86400 / 419
"""Of one H100 with its share of host and network: 419 unplanned interruptions of 16,384 in 54 days (Llama 3,
arXiv:2407.21783, section 3.3.4)."""
RESTART_S = 600.0
"""To see a failure, replace the machine and start again, in automated fleets (MegaScale, Jiang et al. 2024,
arXiv:2402.15627, section 6.3)."""
RECOVERY_S = 3.4
"""99 of 100 recoveries of our elastic runs from memory; see `windlass chaos` in docs/benchmarks.md."""
REPLACE_S = 600.0
MAX_EXPONENT = 700.0
"""Beyond it e^x is no float; the share that is useful is 0 long before."""


@dataclass(frozen=True)
class Failures:
    """How often a device fails, and what follows."""

    mtbf_s: float = DEVICE_MTBF_S
    """Of one device."""
    restart_s: float = RESTART_S
    """Until processes run again, without loading the checkpoint."""
    recovery_s: float = RECOVERY_S
    """Of an elastic run."""
    replace_s: float = REPLACE_S
    """Until a replica that an elastic run lost is back."""

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0:
            raise BadInput(
                f"plan: mtbf must be positive, got {self.mtbf_s} s",
                hint="write it like '5y' or '50000h'",
            )
        if min(self.restart_s, self.recovery_s, self.replace_s) < 0:
            raise BadInput("plan: restart times must be 0 or more", hint="write it like '10m'")


@dataclass(frozen=True)
class FailureModel:
    """Failures of a run and their cost."""

    mtbf_s: float
    """Of all devices together."""
    interval_s: float
    """Work between two checkpoints, the best."""
    useful: float
    """Share of the time, for a run that goes back to its checkpoint."""
    elastic: float
    """The same for an elastic run, which continues from memory."""

    def seconds(self, work_s: float, *, elastic: bool = False) -> float:
        """Return the wall time of `work_s` seconds of work."""
        share = self.elastic if elastic else self.useful
        return work_s / share if share > 0 else math.inf

    def expected_failures(self, work_s: float, *, elastic: bool = False) -> float:
        return self.seconds(work_s, elastic=elastic) / self.mtbf_s


def goodput(
    failures: Failures,
    devices: int,
    *,
    step_s: float,
    stall_s: float,
    load_s: float = 0.0,
    lag_s: float = 0.0,
    replicas: int = 1,
) -> FailureModel:
    """Return the best interval and the useful shares.

    `stall_s` is how long training waits for a checkpoint, `lag_s` how much later it is whole: work in that
    time is lost with a failure too, and the next checkpoint cannot begin in it. An elastic run of one replica
    has no others to continue with.
    """
    mtbf_s = failures.mtbf_s / devices
    interval_s = max(step_s, lag_s, best_interval(stall_s, mtbf_s))
    restart_s = failures.restart_s + load_s + lag_s
    useful = useful_share(interval_s, stall_s, restart_s, mtbf_s)
    if replicas == 1:
        return FailureModel(mtbf_s, interval_s, useful, useful)
    present = 1 / (1 + failures.replace_s / (mtbf_s * replicas))
    elastic = present * useful_share(step_s, 0.0, failures.recovery_s, mtbf_s)
    return FailureModel(mtbf_s, interval_s, useful, elastic)


def useful_share(interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return Daly's expected share of useful time."""
    exponent = (restart_s + interval_s + stall_s) / mtbf_s
    if exponent > MAX_EXPONENT:
        return 0.0
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s))


def best_interval(stall_s: float, mtbf_s: float) -> float:
    """Return the interval with the largest useful share, by Newton's method.

    The left side of the equation is convex and grows, so from the right end (x = 1: one failure in each
    interval) every step stays right of the root and comes closer.
    """
    stall = stall_s / mtbf_s
    if stall == 0:
        return 0.0
    x = 1.0
    for _ in range(100):
        growth = math.exp(min(x + stall, MAX_EXPONENT))
        step = (growth * (x - 1) + 1) / (growth * x)
        x -= step
        if step <= 1e-12 * x:
            break
    return x * mtbf_s
