import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.plan.cost.money import Prices, added, cost_of, format_dollars, middle
from windlass.plan.cost.step_config import Device
from windlass.spec.errors import BadInput

H100 = Device(
    name="H100",
    peak_flops={"bfloat16": 989e12},
    memory_bytes=80e9,
    memory_bytes_s=3.35e12,
    link_bytes_s=450e9,
    network_bytes_s=50e9,
    watts=700,
    dollars_h=(2.0, 8.0),
)


def test_a_day_of_eight_devices_costs_what_the_price_list_says() -> None:
    cost = cost_of(86400, 8, H100)
    assert cost.device_hours == 192
    assert cost.dollars == (384, 1536)
    assert cost.kwh == pytest.approx(192 * 0.7 * 1.1 * 1.2)
    assert cost.middle == pytest.approx(768)


def test_a_price_that_is_given_stands_in_place_of_the_catalogue() -> None:
    assert cost_of(3600, 1, H100, Prices(dollars_h=(3.0, 3.0))).dollars == (3, 3)
    assert cost_of(3600, 1, H100, Prices(dollars_h=(0.0, 0.0))).dollars == (0, 0)


def test_who_owns_the_machines_pays_for_energy() -> None:
    cost = cost_of(3600, 10, H100, Prices(dollars_h=(0.0, 0.0), dollars_kwh=0.25, pue=1.0, load=1.0))
    assert cost.dollars == (pytest.approx(1.75), pytest.approx(1.75))


def test_a_missing_price_is_unknown_and_not_free() -> None:
    unknown = Device("cpu", {"float32": 1e11}, 8e9, 2e10, 2e10, 1e9)
    cost = cost_of(3600, 1, unknown)
    assert (cost.dollars, cost.kwh, cost.middle) == (None, None, None)
    assert added([cost, cost_of(3600, 1, H100)]).dollars is None
    assert format_dollars(cost.dollars) == "unknown"


@given(st.floats(0, 1e9), st.integers(1, 10_000), st.integers(1, 10_000))
def test_two_parts_of_a_fleet_cost_as_much_as_the_whole(seconds: float, here: int, there: int) -> None:
    whole = cost_of(seconds, here + there, H100)
    parts = added([cost_of(seconds, here, H100), cost_of(seconds, there, H100)])
    assert whole.dollars is not None
    assert parts.dollars == pytest.approx(whole.dollars)
    assert parts.kwh == pytest.approx(whole.kwh)


@given(st.floats(0.01, 1e6), st.floats(1, 10))
def test_the_middle_of_a_range_is_as_many_times_above_as_below(low: float, spread: float) -> None:
    between = middle((low, low * spread))
    assert between / low == pytest.approx(low * spread / between)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"dollars_h": (-1.0, 2.0)}, "-1.0 to 2.0 dollars an hour"),
        ({"dollars_h": (3.0, 2.0)}, "3.0 to 2.0"),
        ({"dollars_kwh": -0.1}, "-0.1 dollars a kWh"),
        ({"pue": 0.9}, "PUE of 0.9"),
        ({"load": 0.0}, "load of 0.0"),
        ({"watts": -5.0}, "-5.0 W"),
    ],
)
def test_prices_that_cannot_be_are_named(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        Prices(**wrong)  # type: ignore[arg-type]


def test_no_devices_are_refused() -> None:
    with pytest.raises(BadInput, match="0 devices"):
        cost_of(60, 0, H100)


def test_money_is_written_for_people() -> None:
    assert format_dollars((1234.4, 9876.5)) == "$1,234 to $9,876"
    assert format_dollars((1.5, 1.5)) == "$1.50"
