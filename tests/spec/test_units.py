from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.spec.units import (
    format_bytes,
    format_count,
    format_seconds,
    parse_bytes,
    parse_count,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80GiB", 80 * 2**30), ("1.5 MB", 1_500_000), ("7", 7), (12, 12), ("1_000kB", 10**6)],
)
def test_sizes_are_read(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("3d", 259200), ("90s", 90), ("1h30m", 5400), ("250ms", 0.25), (1.5, 1.5), ("2w", 1209600)],
)
def test_durations_are_read(text: str | float, expected: float) -> None:
    assert parse_seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("15M", 15_000_000), ("1.5k", 1500), (3, 3), ("2e3", 2000), ("7B", 7 * 10**9)]
)
def test_counts_are_read(text: str | int, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-3GiB", "3 parsecs", "1..5MB", "nan", "١٢"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size in bytes"):
        parse_bytes(text)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True])
def test_impossible_numbers_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_bytes(value)


@given(st.integers(0, 2**60))
def test_a_plain_number_of_bytes_stands_for_itself(size: int) -> None:
    assert parse_bytes(str(size)) == pytest.approx(size)


@given(st.floats(0, 1e9))
def test_people_get_short_texts(value: float) -> None:
    assert len(format_bytes(value)) < 12
    assert len(format_count(value)) < 12
    assert len(format_seconds(value)) < 12


@pytest.mark.parametrize("read", [parse_bytes, parse_count, parse_seconds])
@pytest.mark.parametrize("value", [None, [], {}, True, -1, float("nan"), 10**400, "9" * 400, "1e999", "1e40"])
def test_what_is_no_finite_quantity_is_refused(read: Callable[[Any], float], value: Any) -> None:
    with pytest.raises(ValueError, match="is not a"):
        read(value)
