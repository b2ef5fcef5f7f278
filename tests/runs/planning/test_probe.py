from pathlib import Path

import pytest

from windlass.plan.local.memory import local_memory
from windlass.plan.local.profile import find_profile, save_profile
from windlass.plan.local.step import StepShape, local_step
from windlass.runs.planning.probe import measure_disk, merged, probe, settings_for
from windlass.spec.errors import StoreFailed
from windlass.spec.layout import Layout
from windlass.spec.protocol.progress import Progress
from windlass.spec.shape import DecoderShape


@pytest.mark.parametrize(
    ("cores", "settings"),
    [
        (1, [(1, 1)]),
        (2, [(1, 1), (1, 2), (2, 1)]),
        (6, [(1, 1), (1, 6), (4, 1)]),
        (64, [(1, 1), (1, 64), (8, 1)]),
    ],
)
def test_a_machine_is_measured_with_one_core_with_all_and_with_a_process_on_each(
    cores: int, settings: list[tuple[int, int]]
) -> None:
    assert list(settings_for(cores)) == settings


def test_of_processes_the_slowest_counts_and_of_sweeps_the_quickest() -> None:
    one = {"kind": "sum", "seconds": 0.2, "all": [{"seconds": 1.0}, {"seconds": 2.0}]}
    other = {"kind": "sum", "seconds": 0.3, "all": [{"seconds": 1.5}, {"seconds": 1.0}]}
    assert merged(max, [one, other]) == {
        "kind": "sum",
        "seconds": 0.3,
        "all": [{"seconds": 1.5}, {"seconds": 2.0}],
    }
    assert merged(min, [one, other]) == {
        "kind": "sum",
        "seconds": 0.2,
        "all": [{"seconds": 1.0}, {"seconds": 1.0}],
    }


def test_measuring_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    found = measure_disk(tmp_path / "new" / "probe.tmp", 8 << 20)
    assert set(found) == {"write_bytes_s", "read_bytes_s", "fsync_s"}
    assert all(value > 0 for value in found.values())
    assert list((tmp_path / "new").iterdir()) == []


def test_a_disk_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "probe.tmp").mkdir()
    with pytest.raises(StoreFailed, match=r"probe\.tmp"):
        measure_disk(tmp_path / "probe.tmp", 1 << 20)


@pytest.mark.long
@pytest.mark.slow
def test_a_machine_is_measured_and_a_step_on_it_predicted(tmp_path: Path) -> None:
    progress: list[Progress] = []
    save_profile(probe(tmp_path, progress.append, quick=True), tmp_path)
    found = find_profile(tmp_path)
    assert found is not None
    assert progress[-1].done == progress[-1].total
    shape = DecoderShape(vocabulary=512, context=64, layers=2, width=64, heads=2, kv_heads=2, ffn_width=192)
    step = StepShape(shape, Layout(), 4, 2, threads=1)
    assert 1e-4 < local_step(found, step).seconds < 100
    assert 50 << 20 < local_memory(found, step).bytes < 8 << 30
