"""One job from its submission to its end: its progress, checkpoints and lost work."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.lab.simulate.workload import SimulatedJob


@dataclass(slots=True)
class SimJob:
    """Work is measured in seconds with all members on nodes that are not slow."""

    job: SimulatedJob
    submitted_s: float
    progress_s: float = 0.0
    saved_s: float = 0.0
    rate: float = 0.0
    """Seconds of work per second; 0 when it does not work."""
    at_s: float = 0.0
    """The time at which `progress_s` was current."""
    unsaved_s: float = 0.0
    """Seconds since the last save."""
    admitted_s: float | None = None
    """Time of the first launch."""
    began_s: float | None = None
    ended_s: float | None = None
    broken_s: float | None = None
    """Since when it runs with less than requested, because a node failed."""
    preemptions: int = 0

    def work(self, rate: float, now_s: float) -> None:
        """Continue at another rate."""
        self.advance(now_s)
        if self.began_s is None:
            self.began_s = now_s
        self.rate = rate

    def advance(self, now_s: float) -> None:
        """Advance progress to a time, and record the saves on the way."""
        passed_s = now_s - self.at_s
        self.at_s = now_s
        if self.rate == 0.0:
            return
        self.progress_s += passed_s * self.rate
        self.unsaved_s += passed_s
        every_s = self.job.save_every_s
        if self.unsaved_s >= every_s:
            self.unsaved_s %= every_s
            self.saved_s = self.progress_s - self.unsaved_s * self.rate

    def pause(self, now_s: float) -> None:
        """Stop working; nothing is lost so far."""
        self.advance(now_s)
        self.rate = 0.0

    def save(self) -> None:
        self.saved_s, self.unsaved_s = self.progress_s, 0.0

    def roll_back(self) -> float:
        """Roll back to the last save; return the lost work."""
        lost_s = self.progress_s - self.saved_s
        self.progress_s, self.unsaved_s = self.saved_s, 0.0
        return lost_s

    @property
    def left_s(self) -> float:
        return self.job.work_s - self.progress_s
