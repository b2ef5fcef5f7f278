"""One job from its submission to its end: how far its work has come, what is saved, what was lost."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.lab.simulate.workload import SimulatedJob


@dataclass(slots=True)
class SimJob:
    """Work is counted in seconds with all members on machines that are not slow."""

    job: SimulatedJob
    asked_s: float
    progress_s: float = 0.0
    saved_s: float = 0.0
    rate: float = 0.0
    """Seconds of work in a second; 0 when it does not work."""
    at_s: float = 0.0
    """When `progress_s` was right."""
    unsaved_s: float = 0.0
    """Since the last save, in seconds of time."""
    admitted_s: float | None = None
    """When it was launched first."""
    began_s: float | None = None
    ended_s: float | None = None
    broken_s: float | None = None
    """Since when less of it runs than was asked for, because a machine failed."""
    launches: int = 0
    preemptions: int = 0

    def work(self, rate: float, now_s: float) -> None:
        """Go on at another rate."""
        self.advance(now_s)
        if self.began_s is None:
            self.began_s = now_s
        self.rate = rate

    def advance(self, now_s: float) -> None:
        """Bring progress up to a moment, and note what was saved on the way."""
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
        """Return the work that is to be done again."""
        lost_s = self.progress_s - self.saved_s
        self.progress_s, self.unsaved_s = self.saved_s, 0.0
        return lost_s

    @property
    def left_s(self) -> float:
        return self.job.work_s - self.progress_s
