"""The boards of other processes: read, merged, and folded together once their process has ended."""

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
    """A board as it was found."""

    lives: bool
    totals: Totals


def merge_boards(boards: Iterable[ReadMetrics]) -> Totals:
    """Add boards up. What one source tells every gateway is kept from the living only, and once."""
    merged: Totals = {}
    for board in boards:
        for key, numbers in board.totals.items():
            once = key[0].kind == "gauge" or key[0].merge == "max"
            if (once and not board.lives) or any(map(math.isnan, numbers)):
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
    """Read the boards of all other processes, and what is left of boards that were folded."""
    with _folding(folder, fcntl.LOCK_SH):
        ended, folded = _read_ended(folder)
        others = [p for p in sorted(folder.glob("*.series")) if p.stem != name and p.stem not in folded]
        return [ReadMetrics(False, ended), *(ReadMetrics(_lives(path), _read_board(path)) for path in others)]


def fold(folder: Path) -> None:
    """Put the counters of ended processes into one file, so that restarts leave no heap of boards.

    The file names what it holds: boards that were folded and not yet deleted are not counted twice.
    """
    with _folding(folder, fcntl.LOCK_EX):
        ended, folded = _read_ended(folder)
        gone = [p for p in folder.glob("*.series") if p.stem not in folded and not _lives(p)]
        if not gone:
            return
        totals = merge_boards(
            [ReadMetrics(False, ended), *(ReadMetrics(False, _read_board(path)) for path in gone)]
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
    """Nobody reads while somebody folds: a board would be missed, or counted twice."""
    with (folder / "fold.lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


def _lives(path: Path) -> bool:
    """Tell whether a process holds the lock of its list; the system lets go of it with the process."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _read_board(path: Path) -> Totals:
    """Read the series of a board; one whose process is just being born, or was just folded, has none."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
        with path.with_suffix(".values").open("rb") as file:
            told = [json.loads(line) for line in lines if line.endswith(b"\n")]
            keys = {each["at"]: _key(each) for each in told}  # the last that came to a place has it
            ends = [at + figure.size for at, (figure, _) in keys.items()]
            numbers = memoryview(file.read(NUMBER_BYTES * max(ends, default=0))).cast("d")
    except FileNotFoundError:
        return {}
    return {key: list(numbers[at : at + key[0].size]) for at, key in keys.items()}


def _read_ended(folder: Path) -> tuple[Totals, frozenset[str]]:
    try:
        told = json.loads((folder / ENDED).read_text())
    except FileNotFoundError:
        return {}, frozenset()
    return {_key(series): series["numbers"] for series in told["series"]}, frozenset(told["boards"])


def line_of(figure: Figure, values: tuple[str, ...], at: int) -> bytes:
    return json.dumps({"figure": asdict(figure), "values": values, "at": at}).encode() + b"\n"


def _key(told: dict[str, object]) -> Key:
    figure, values = told["figure"], told["values"]
    assert isinstance(figure, dict)
    assert isinstance(values, list)
    fields = figure | {"labels": tuple(figure["labels"]), "bounds": tuple(figure["bounds"])}
    return Figure(**fields), tuple(values)
