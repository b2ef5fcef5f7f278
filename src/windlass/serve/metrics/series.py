"""Counters, gauges and histograms: numbers in mapped memory, and their descriptions.

One thread of a process writes; eight aligned bytes are written at once, so a reader in another process never
sees half a number.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

MAX_SERIES = 256
"""Max series of one metric in one registry; further label values are counted as OTHER."""
OTHER = "other"

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "max"]


@dataclass(frozen=True)
class Figure:
    """A metric. A gauge that every gateway gets from one source is merged by its maximum."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    merge: Merge = "sum"

    @property
    def size(self) -> int:
        """Numbers that a series takes: a histogram has one for each bucket, one beyond them, and a sum."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1


Key = tuple[Figure, tuple[str, ...]]
Totals = dict[Key, list[float]]


class Counter:
    """Only grows."""

    __slots__ = ("_at", "_numbers")

    def __init__(self, numbers: memoryview[float], at: int, figure: Figure) -> None:
        self._numbers, self._at = numbers, at

    def inc(self, amount: float = 1.0) -> None:
        self._numbers[self._at] += amount


class Gauge:
    """Goes up and down."""

    __slots__ = ("_at", "_numbers")

    def __init__(self, numbers: memoryview[float], at: int, figure: Figure) -> None:
        self._numbers, self._at = numbers, at

    def set(self, value: float) -> None:
        self._numbers[self._at] = value

    def inc(self, amount: float = 1.0) -> None:
        self._numbers[self._at] += amount

    def dec(self, amount: float = 1.0) -> None:
        self._numbers[self._at] -= amount

    def clear(self) -> None:
        """Report nothing until it is set again."""
        self._numbers[self._at] = math.nan


class Histogram:
    """How many values fell between which bounds, and their sum."""

    __slots__ = ("_at", "_bounds", "_numbers", "_sum_at")

    def __init__(self, numbers: memoryview[float], at: int, figure: Figure) -> None:
        self._numbers, self._at, self._bounds = numbers, at, figure.bounds
        self._sum_at = at + figure.size - 1

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value that was seen `times` times: one call for all tokens of a frame."""
        numbers = self._numbers
        numbers[self._at + bisect_left(self._bounds, value)] += times
        numbers[self._sum_at] += value * times


S = TypeVar("S", Counter, Gauge, Histogram)


class Family(Generic[S]):
    """The series of one metric, by the values of its labels."""

    def __init__(self, figure: Figure, make: Callable[[Key], S], free: Callable[[Key], None]) -> None:
        self._figure = figure
        self._make: Callable[[Key], S] = make
        self._free = free
        self._series: dict[tuple[str, ...], S] = {}

    def labels(self, *values: str) -> S:
        series = self._series.get(values)
        if series is None:
            assert len(values) == len(self._figure.labels)
            full = len(self._series) >= MAX_SERIES - 1
            key = (OTHER,) * len(values) if full else values
            series = self._series.get(key) or self._make((self._figure, key))
            self._series[key] = series
        return series

    def drop(self, *values: str) -> None:
        """Stop reporting a series; its index is reused. Only for series that are not summed."""
        assert self._figure.kind == "gauge" or self._figure.merge == "max"
        if self._series.pop(values, None) is not None:
            self._free((self._figure, values))

    def clear(self) -> None:
        """Report no gauge of this family until it is set again."""
        for series in self._series.values():
            assert isinstance(series, Gauge)
            series.clear()
