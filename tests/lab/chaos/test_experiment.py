import itertools
import json
from pathlib import Path

import psutil
import pytest

from windlass.lab.chaos import experiment as storms
from windlass.lab.chaos.experiment import inject_faults
from windlass.lab.chaos.schedule import ScheduledFault
from windlass.lab.chaos.target import ChaosTarget
from windlass.lab.chaos.watch import JournalWatch


def quiet(_line: str) -> None:
    pass


def test_a_watch_gets_every_whole_line_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    watch = JournalWatch(path)
    assert watch.poll(0.0) == []
    path.write_text('{"event": "generation", "generation": 4}\n{"event": "led')
    assert [one.event for one in watch.poll(1.0)] == ["generation"]
    with path.open("a") as file:
        file.write('ger", "generation": 4}\n{"event": "coordinator", "epoch": 7}\n')
    assert [(one.at_s, one.event) for one in watch.poll(2.0)] == [(2.0, "ledger"), (2.0, "coordinator")]
    assert watch.poll(3.0) == []
    assert (watch.generation, watch.epoch, len(watch.seen)) == (4, 7, 3)


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storms, "time", Clock())


def test_an_experiment_injects_heals_and_knows_the_state_before(target: ChaosTarget) -> None:
    schedule = [ScheduledFault(0.0, "freeze", 0.2, 1), ScheduledFault(0.1, "kill", 5.0, 2)]
    experiment = inject_faults(
        target,
        JournalWatch(target.run / "journal.jsonl"),
        schedule,
        seconds=0.6,
        lives=lambda: True,
        tell=quiet,
    )
    frozen, killed = experiment.strikes
    assert (frozen.scheduled.kind, killed.scheduled.kind) == ("freeze", "kill")
    assert frozen.healed_s is not None
    assert 0.2 <= frozen.healed_s - frozen.at_s < 0.2 + 2 * storms.LOOK_EVERY_S
    assert killed.healed_s is None
    assert (killed.generation, killed.epoch) == (3, 2)
    assert set(frozen.fault.workers).isdisjoint(killed.fault.workers)
    assert experiment.misses == []


def test_an_experiment_that_breaks_off_leaves_no_process_frozen(target: ChaosTarget) -> None:
    calls = itertools.count()

    def broken() -> bool:
        if next(calls) > 5:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        inject_faults(
            target,
            JournalWatch(target.run / "journal.jsonl"),
            [ScheduledFault(0.0, "freeze", 9.0, 1)],
            seconds=9.0,
            lives=broken,
            tell=quiet,
        )
    states = [psutil.Process(worker.pid).status() for worker in target.members().workers]
    assert psutil.STATUS_STOPPED not in states


def test_a_fault_without_a_target_is_missed_with_its_reason(
    target: ChaosTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storms, "PATIENCE_S", 0.05)
    body = json.loads((target.run / "members.json").read_text())
    (target.run / "members.json").write_text(json.dumps({**body, "workers": []}))
    experiment = inject_faults(
        target,
        JournalWatch(target.run / "journal.jsonl"),
        [
            ScheduledFault(0.0, "kill", 5.0, 1),
            ScheduledFault(0.0, "corrupt", 5.0, 1),
            ScheduledFault(5.0, "kill", 5.0, 1),
        ],
        seconds=0.3,
        lives=lambda: True,
        tell=quiet,
    )
    assert experiment.strikes == []
    assert [miss.reason for miss in experiment.misses] == ["no worker is training"] * 2 + [
        "the experiment was over"
    ]
