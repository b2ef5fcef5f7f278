"""The registries of other processes: read, merged, and folded together once their process has ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.serve.metrics.series import Figure, Key, Totals

ENDED = "ended.json"
NUMBER_BYTES = 8


@dataclass(frozen=True)
class ReadMetrics:
    """A registry as it was read."""

    lives: bool
    totals: Totals


def merge_registries(registries: Iterable[ReadMetrics]) -> Totals:
    """Merge registries. Gauges, and series merged by maximum, count only while their process lives."""
    merged: Totals = {}
    for registry in registries:
        for key, numbers in registry.totals.items():
            once = key[0].kind == "gauge" or key[0].merge == "max"
            if (once and not registry.lives) or any(map(math.isnan, numbers)):
                continue
            before = merged.get(key)
            if before is None:
                merged[key] = numbers
            elif key[0].merge == "max":
                merged[key] = [max(a, b) for a, b in zip(before, numbers, strict=True)]
            else:
                merged[key] = [a + b for a, b in zip(before, numbers, strict=True)]
    return merged


def read_others(folder: Path, name: str = "") -> list[ReadMetrics]:
    """Read the registries of all other processes, and the totals of those that were folded."""
    with _folding(folder, fcntl.LOCK_SH):
        ended, folded = _read_ended(folder)
        others = [p for p in sorted(folder.glob("*.series")) if p.stem != name and p.stem not in folded]
        return [
            ReadMetrics(False, ended),
            *(ReadMetrics(_lives(path), _read_registry(path)) for path in others),
        ]


def fold(folder: Path) -> None:
    """Fold the counters of ended processes into one file, so that restarts do not pile up files.

    The file names what it holds: registries that were folded and not yet deleted are not counted twice.
    """
    with _folding(folder, fcntl.LOCK_EX):
        ended, folded = _read_ended(folder)
        gone = [p for p in folder.glob("*.series") if p.stem not in folded and not _lives(p)]
        if not gone:
            return
        totals = merge_registries(
            [ReadMetrics(False, ended), *(ReadMetrics(False, _read_registry(path)) for path in gone)]
        )
        names = sorted({*folded, *(path.stem for path in gone)})
        series = [json.loads(line_of(*key, 0)) | {"numbers": numbers} for key, numbers in totals.items()]
        part = folder / f"{ENDED}.part"
        part.write_text(json.dumps({"boards": names, "series": series}))
        part.rename(folder / ENDED)
        for path in gone:
            path.with_suffix(".values").unlink(missing_ok=True)
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _folding(folder: Path, how: int) -> Iterator[None]:
    """Lock out readers while a process folds: they would miss a registry, or count it twice."""
    with (folder / "fold.lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


def _lives(path: Path) -> bool:
    """Whether a process holds the lock of its list; the system releases it when the process ends."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _read_registry(path: Path) -> Totals:
    """Read the series of a registry; one that is just being created, or was just folded, has none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        with path.with_suffix(".values").open("rb") as file:
            listed = [json.loads(line) for line in lines if line.endswith(b"\n")]
            keys = {series["at"]: _key(series) for series in listed}  # the newest series at an index owns it
            ends = [at + figure.size for at, (figure, _) in keys.items()]
            numbers = memoryview(file.read(NUMBER_BYTES * max(ends, default=0))).cast("d")
    except FileNotFoundError:
        return {}
    return {key: list(numbers[at : at + key[0].size]) for at, key in keys.items()}


def _read_ended(folder: Path) -> tuple[Totals, frozenset[str]]:
    try:
        ended = json.loads((folder / ENDED).read_text())
    except FileNotFoundError:
        return {}, frozenset()
    return {_key(series): series["numbers"] for series in ended["series"]}, frozenset(ended["boards"])


def line_of(figure: Figure, values: tuple[str, ...], at: int) -> bytes:
    return json.dumps({"figure": asdict(figure), "values": values, "at": at}).encode() + b"\n"


def _key(series: dict[str, object]) -> Key:
    figure, values = series["figure"], series["values"]
    assert isinstance(figure, dict)
    assert isinstance(values, list)
    fields = figure | {"labels": tuple(figure["labels"]), "bounds": tuple(figure["bounds"])}
    return Figure(**fields), tuple(values)
