import json
import os
import random
import time
from pathlib import Path

import psutil
import pytest

from windlass.lab.chaos import process_faults
from windlass.lab.chaos.disk import SmallDisk, corrupt_newest, mounted
from windlass.lab.chaos.injected_fault import NothingToHit
from windlass.lab.chaos.target import ChaosTarget
from windlass.spec.errors import Damaged
from windlass.store.manifest import DirectoryWriter, verify
from windlass.store.store_dir import StoreDir


def dice() -> random.Random:
    return random.Random(5)


def process_of(target: ChaosTarget, worker: str) -> psutil.Process:
    return next(psutil.Process(w.pid) for w in target.members().workers if w.worker == worker)


def dead(process: psutil.Process) -> bool:
    """A killed child of the launcher is gone, or waits to be asked about."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True  # it went between the two questions


def wait_stopped(process: psutil.Process, *, stopped: bool = True) -> None:
    """A signal is obeyed when its process is next given a core."""
    until = time.monotonic() + 60
    while (process.status() == psutil.STATUS_STOPPED) != stopped:
        assert time.monotonic() < until
        time.sleep(0.005)


def wait_dead(*processes: psutil.Process) -> None:
    until = time.monotonic() + 60
    while not all(map(dead, processes)):
        assert time.monotonic() < until
        time.sleep(0.005)


def test_a_kill_takes_one_worker_for_good(target: ChaosTarget) -> None:
    before = {worker.worker: process_of(target, worker.worker) for worker in target.workers()}
    fault = process_faults.kill(target, dice())
    (victim,) = fault.workers
    wait_dead(before[victim])
    assert not fault.lasts
    assert fault.interrupts
    assert victim not in {worker.worker for worker in target.workers()}
    assert len(target.workers()) == 2


def test_a_frozen_worker_stands_still_until_it_heals_and_is_not_hit_twice(target: ChaosTarget) -> None:
    fault = process_faults.freeze(target, dice())
    process = process_of(target, fault.workers[0])
    wait_stopped(process)
    assert fault.workers[0] not in {worker.worker for worker in target.workers()}
    fault.heal()
    wait_stopped(process, stopped=False)
    assert len(target.workers()) == 3


def test_a_frozen_worker_that_was_fenced_meanwhile_heals_without_a_word(target: ChaosTarget) -> None:
    fault = process_faults.freeze(target, dice())
    process = process_of(target, fault.workers[0])
    process.kill()
    wait_dead(process)
    fault.heal()


def test_a_slow_worker_runs_a_share_of_every_period(target: ChaosTarget) -> None:
    fault = process_faults.slow(target, dice())
    process = process_of(target, fault.workers[0])
    for tick in range(20):
        fault.tick((tick + 0.5) * process_faults.SLOW_PERIOD_S / 10)
        wait_stopped(process, stopped=(tick % 10 + 0.5) / 10 > process_faults.SLOW_SHARE)
    fault.heal()
    wait_stopped(process, stopped=False)


def test_a_blackout_hits_all_processes_but_the_coordinator(target: ChaosTarget) -> None:
    before = {worker.worker: process_of(target, worker.worker) for worker in target.workers()}
    fault = process_faults.blackout(target, dice())
    assert len(fault.workers) == 3
    wait_dead(*(before[worker] for worker in fault.workers))
    assert target.owns(target.members().coordinator)
    with pytest.raises(NothingToHit):
        process_faults.blackout(target, dice())


def test_the_leading_coordinator_is_killed_or_frozen(target: ChaosTarget) -> None:
    leader = psutil.Process(target.members().coordinator)
    fault = process_faults.coordinator_freeze(target, dice())
    wait_stopped(leader)
    with pytest.raises(NothingToHit):
        process_faults.coordinator(target, dice())
    fault.heal()
    process_faults.coordinator(target, dice())
    wait_dead(leader)


def test_a_process_of_another_run_is_never_hit(target: ChaosTarget) -> None:
    """As when members.json is old and its numbers have been given to others."""
    body = json.loads((target.run / "members.json").read_text())
    for worker in body["workers"]:
        worker["pid"] = os.getpid()
    (target.run / "members.json").write_text(json.dumps(body))
    with pytest.raises(NothingToHit):
        process_faults.kill(target, dice())
    with pytest.raises(NothingToHit):
        process_faults.blackout(target, dice())


def test_no_process_is_hit_before_a_coordinator_reports_the_members(tmp_path: Path) -> None:
    with pytest.raises(NothingToHit):
        process_faults.kill(ChaosTarget(tmp_path, list), dice())


def checkpoint(run: Path, step: int) -> Path:
    folder = run / "checkpoints" / f"step-{step:08d}"
    writer = DirectoryWriter(StoreDir(folder))
    writer.write("part-00000.safetensors", bytes(range(256)) * 20)
    writer.write("state.json", b"{}")
    writer.commit()
    return folder


def test_the_newest_checkpoint_is_damaged_and_the_one_before_is_not(tmp_path: Path) -> None:
    before, newest = checkpoint(tmp_path, 5), checkpoint(tmp_path, 10)
    (newest / "part-00000.safetensors").unlink()
    os.link(before / "part-00000.safetensors", newest / "part-00000.safetensors")
    assert corrupt_newest(tmp_path, dice()) == "step-00000010/part-00000.safetensors"
    with pytest.raises(Damaged):
        verify(StoreDir(newest))
    verify(StoreDir(before))


def test_the_only_checkpoint_is_left_alone(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    with pytest.raises(NothingToHit):
        corrupt_newest(tmp_path, dice())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a tmpfs")
def test_a_small_disk_fills_up_is_emptied_and_leaves_its_files(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    disk = SmallDisk(path, 1 << 20)
    try:
        (path / "kept").write_bytes(b"x" * 1000)
        assert mounted()[path] == os.getpid()
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            (path / "more").write_bytes(b"y" * 5000)
        disk.empty()
        (path / "more").write_bytes(b"y" * 5000)
    finally:
        disk.remove()
    assert path not in mounted()
    assert (path / "kept").read_bytes() == b"x" * 1000
    assert (path / "more").exists()
