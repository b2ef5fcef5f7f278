from pathlib import Path

import pytest

from windlass.operate.probe import measure_disk, settings_for, slowest
from windlass.spec.errors import StoreFailed


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


def test_of_processes_that_wait_for_each_other_the_slowest_counts() -> None:
    one = {"kind": "sum", "seconds": 0.2, "all": [{"seconds": 1.0}, {"seconds": 2.0}]}
    other = {"kind": "sum", "seconds": 0.3, "all": [{"seconds": 1.5}, {"seconds": 1.0}]}
    assert slowest([one, other]) == {
        "kind": "sum",
        "seconds": 0.3,
        "all": [{"seconds": 1.5}, {"seconds": 2.0}],
    }


def test_measuring_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    found = measure_disk(tmp_path / "new" / "probe.tmp", 8 << 20)
    assert set(found) == {"write_bytes_s", "read_bytes_s", "fsync_s"}
    assert all(value > 0 for value in found.values())
    assert list((tmp_path / "new").iterdir()) == []


def test_a_disk_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "probe.tmp").mkdir()
    with pytest.raises(StoreFailed, match=r"probe\.tmp"):
        measure_disk(tmp_path / "probe.tmp", 1 << 20)
