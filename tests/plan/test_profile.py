from pathlib import Path

import pytest

from windlass.plan.local.machine import usable_cores
from windlass.plan.local.profile import (
    FRESH_S,
    PROFILE,
    Profile,
    find_profile,
    load_profile,
    quickest_quarter,
    save_profile,
    this_machine,
    this_software,
    why_stale,
)
from windlass.spec.errors import BadInput

MADE_UP = load_profile(Path(__file__).with_name("profile-two-cores.json"))
"""Of a machine with two cores, made up from simple laws: no noise of a real one is in it."""


def of_this_machine(**changes: object) -> Profile:
    here = {
        "machine": this_machine(),
        "cores": usable_cores(),
        "software": this_software(),
        "made_at": 1000.0,
    }
    return MADE_UP.model_copy(update=here | changes)


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load_profile(save_profile(MADE_UP, tmp_path)) == MADE_UP


def test_a_fresh_profile_of_this_machine_counts() -> None:
    assert why_stale(of_this_machine(), now=1000.0 + FRESH_S) is None


@pytest.mark.parametrize(
    ("changes", "now", "reason"),
    [
        ({"machine": "abacus"}, 1000.0, "abacus"),
        ({"cores": 999}, 1000.0, "999 cores"),
        ({"software": {"torch": "0.1"}}, 1000.0, "torch 0.1"),
        ({}, 1000.0 + 2 * FRESH_S, "60 days old"),
        ({}, 0.0, "days old"),
    ],
)
def test_a_profile_of_something_else_does_not_count(
    changes: dict[str, object], now: float, reason: str
) -> None:
    found = why_stale(of_this_machine(**changes), now=now)
    assert found is not None
    assert reason in found


def test_without_a_profile_nothing_is_found(tmp_path: Path) -> None:
    assert find_profile(tmp_path) is None
    with pytest.raises(BadInput, match="no profile") as error:
        load_profile(tmp_path / PROFILE)
    assert "windlass probe" in str(error.value)


@pytest.mark.parametrize("text", ["", "{}", '{"format": "windlass-profile-0"}', "[1]"])
def test_a_damaged_profile_is_reported_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / PROFILE).write_text(text)
    with pytest.raises(BadInput, match=r"profile\.json") as error:
        find_profile(tmp_path)
    assert "windlass probe" in str(error.value)


def test_noise_does_not_move_the_quickest_quarter() -> None:
    assert quickest_quarter([1.0, 1.0, 9.0, 1.2, 50.0, 1.1, 7.0, 3.0]) == pytest.approx(1.0)
    assert quickest_quarter([2.0]) == 2.0
