"""What a fleet may say, and how mistakes in it are told."""

import re
from pathlib import Path

import pytest

from windlass.spec.errors import AskedWrongly
from windlass.spec.fleet import fleet_of

FLEET = """
store = "5GB"
restart = "5m"
[[machines]]
device = "H100-SXM5"
count = 8
price_h = [1.9, 2.5]
mtbf = "50000h"
[[machines]]
device = "A100"
count = 2
devices = 4
memory = "40GB"
price_h = 1
"""


def test_a_file_names_unequal_groups(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    fleet = fleet_of(str(path))
    assert fleet.devices == 8 * 8 + 2 * 4
    assert fleet.machines[0].prices == (1.9, 2.5)
    assert fleet.machines[1].prices == (1.0, 1.0)
    assert fleet.machines[1].memory == 40e9
    assert (fleet.store, fleet.restart) == (5e9, 300)


@pytest.mark.parametrize(
    ("words", "groups"),
    [
        ("64xH100-SXM5", [(8, 8)]),
        ("12 x A100", [(3, 4)]),
        ("1xT4", [(1, 1)]),
        ("64xH100+16xA100", [(8, 8), (2, 8)]),
    ],
)
def test_words_say_how_many_devices(words: str, groups: list[tuple[int, int]]) -> None:
    assert [(group.count, group.devices) for group in fleet_of(words).machines] == groups


def test_a_price_next_to_the_fleet_holds_for_all() -> None:
    assert {group.prices for group in fleet_of("8xH100+8xA100", 2.0).machines} == {(2.0, 2.0)}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("machines = []", "at least one group"),
        ("", "machines: is missing"),
        ('[[machines]]\ndevice = "T4"\ncount = 0', "count: 0 is not right"),
        ('[[machines]]\ndevice = "T4"\nprice_h = -1', "-1 to -1 is not a price"),
        ('[[machines]]\ndevice = "T4"\nprice_h = [3, 2]', "3 to 2 is not a price"),
        ('[[machines]]\ndevice = "T4"\nmtbf = "long"', "'long' is not a duration"),
        ('[[machines]]\ndevice = "T4"\nprise_h = 1', "unknown key"),
        ('[[machine]]\ndevice = "T4"', "unknown key 'machine' (did you mean 'machines'?)"),
        ("pue = 0.5\nmachines = [{device = 'T4'}]", "pue"),
    ],
)
def test_mistakes_in_a_file_are_reported_by_name(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    with pytest.raises(AskedWrongly, match=r"fleet\.toml") as told:
        fleet_of(str(path))
    assert reason in str(told.value)


@pytest.mark.parametrize("words", ["0xH100", "H100", "x", "-3xH100", "nowhere.toml"])
def test_words_that_are_no_fleet_are_refused(words: str) -> None:
    with pytest.raises(AskedWrongly, match=re.escape(words)):
        fleet_of(words)
