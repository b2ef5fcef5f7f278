"""The metrics of one process, and the text that reports those of all."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from windlass.serve.metrics.multiprocess import ReadMetrics, fold, line_of, merge_registries, read_others
from windlass.serve.metrics.series import Counter, Family, Figure, Gauge, Histogram, Key, Merge, S, Totals

REGISTRY_BYTES = 1 << 20
"""Space for 131,072 numbers; pages that are never written take no memory."""


class MetricsRegistry:
    """The metrics of this process; without a folder they are not shared with other processes."""

    def __init__(self, folder: Path | None = None, name: str = "") -> None:
        self.figures: list[Figure] = []
        """All metrics that were declared, counted yet or not."""
        self._folder = folder
        self._name = name or f"{os.getpid()}-{os.urandom(4).hex()}"
        self._series: dict[Key, int] = {}
        self._free: dict[Figure, list[int]] = {}
        self._used = 0
        self._list = None if folder is None else _open_list(folder, self._name)
        self._numbers = memoryview(_map(folder, self._name)).cast("d")

    def counter(self, name: str, text: str) -> Counter:
        return self._alone(Counter, Figure(name, "counter", text))

    def counters(
        self, name: str, text: str, labels: tuple[str, ...], merge: Merge = "sum"
    ) -> Family[Counter]:
        return self._family(Counter, Figure(name, "counter", text, labels, merge=merge))

    def gauge(self, name: str, text: str, merge: Merge = "sum") -> Gauge:
        return self._alone(Gauge, Figure(name, "gauge", text, merge=merge))

    def gauges(self, name: str, text: str, labels: tuple[str, ...], merge: Merge = "sum") -> Family[Gauge]:
        return self._family(Gauge, Figure(name, "gauge", text, labels, merge=merge))

    def histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
        return self._alone(Histogram, Figure(name, "histogram", text, bounds=bounds))

    def histograms(
        self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]
    ) -> Family[Histogram]:
        return self._family(Histogram, Figure(name, "histogram", text, labels, bounds))

    def totals(self) -> Totals:
        """Return the merged numbers of all registries in the folder."""
        registries = [ReadMetrics(True, self._read())]
        if self._folder is not None:
            registries += read_others(self._folder, self._name)
        return merge_registries(registries)

    def text(self, only: Mapping[str, str] | None = None) -> bytes:
        """Return all series in Prometheus' text format, or only those that have these labels and values.

        Thread-safe.
        """
        totals = self.totals()
        if only is not None:
            wanted = set(only.items())
            totals = {k: n for k, n in totals.items() if wanted <= set(zip(k[0].labels, k[1], strict=True))}
        return generate_latest(_TotalsCollector(totals))

    def _alone(self, kind: type[S], figure: Figure) -> S:
        self.figures.append(figure)
        return self._make(kind, (figure, ()))

    def _family(self, kind: type[S], figure: Figure) -> Family[S]:
        self.figures.append(figure)
        return Family(figure, lambda key: self._make(kind, key), self._drop)

    def _make(self, kind: type[S], key: Key) -> S:
        figure, _ = key
        at = self._series[key] = self._place(figure)
        if self._list is not None:
            os.write(self._list, line_of(*key, at))
        return kind(self._numbers, at, figure)

    def _place(self, figure: Figure) -> int:
        """Return the index for a new series: of a dropped series of the same metric, or the next free one."""
        if self._free.get(figure):
            at = self._free[figure].pop()
            self._numbers[at] = 0.0
            return at
        assert self._used + figure.size <= len(self._numbers), "the registry is full"
        self._used += figure.size
        return self._used - figure.size

    def _drop(self, key: Key) -> None:
        at = self._series.pop(key)
        self._numbers[at] = math.nan
        self._free.setdefault(key[0], []).append(at)

    def _read(self) -> Totals:
        return {key: list(self._numbers[at : at + key[0].size]) for key, at in list(self._series.items())}


class _TotalsCollector(Collector):
    """Totals as the metric families that Prometheus' own library prints."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        for (figure, values), numbers in sorted(self._totals.items(), key=lambda item: item[0][0].name):
            family = families.get(figure.name)
            if family is None:
                family = families[figure.name] = _family(figure)
            if isinstance(family, HistogramMetricFamily):
                *counts, total = numbers
                family.add_metric(values, list(_cumulative(figure.bounds, counts)), total)
            else:
                family.add_metric(values, numbers[0])
        yield from families.values()


def _family(figure: Figure) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    if figure.kind == "histogram":
        return HistogramMetricFamily(figure.name, figure.help, labels=figure.labels)
    kind = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
    return kind(figure.name, figure.help, labels=figure.labels)


def _cumulative(bounds: tuple[float, ...], counts: list[float]) -> Iterator[tuple[str, float]]:
    total = 0.0
    for bound, count in zip((*bounds, math.inf), counts, strict=True):
        total += count
        yield "+Inf" if bound == math.inf else str(float(bound)), total


def _map(folder: Path | None, name: str) -> mmap.mmap:
    if folder is None:
        return mmap.mmap(-1, REGISTRY_BYTES)
    with (folder / f"{name}.values").open("w+b") as file:
        file.truncate(REGISTRY_BYTES)
        return mmap.mmap(file.fileno(), REGISTRY_BYTES)


def _open_list(folder: Path, name: str) -> int:
    """Create the list of series; it is locked before it gets its name, so it never looks ended."""
    folder.mkdir(parents=True, exist_ok=True)
    fold(folder)
    part = folder / f"{name}.part"
    file = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    part.rename(folder / f"{name}.series")
    return file
