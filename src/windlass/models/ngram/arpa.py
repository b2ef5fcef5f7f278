"""ARPA files, which every n-gram toolkit reads: one line for each n-gram, log10 probability, words, backoff.

Numbers are written with as many digits as tell one float32 from the next, so a file that was written,
read and written again is the same. Files that end in .gz are compressed.

A tokenizer's `end` is </s> where it ends an n-gram and <s> where it begins one. Tokens with white space
in them, which ARPA cannot have, are spelled with its code: a line feed is <|U+000A|>. Toolkits may leave
out n-grams that longer ones begin or end with; they are put in with the probability that backing off
gives, which changes no score.
"""

from __future__ import annotations

import gzip
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.trie import MAX_ORDER, Level, Logs, ngrams_of, word_type
from windlass.spec.errors import BadInput
from windlass.store.store_dir import translate_os_errors

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
NEVER = np.float32(-99)
"""How toolkits write the logarithm of nothing: <s> is never predicted, only seen before others."""
LINES = 1 << 16

Rows = NDArray[np.uint32]


@dataclass(frozen=True)
class Arpa:
    """A model as an ARPA file has it: the words by id, and the tree."""

    words: tuple[str, ...]
    """words[end] and words[unknown] are </s> and <unk>."""
    levels: tuple[Level, ...]
    end: int
    unknown: int


def write_arpa(
    path: Path, levels: Sequence[Level], words: Sequence[str], end: int, unknown: int | None
) -> None:
    """Write a model; a vocabulary without an unknown token gets <unk> with the probability of nothing."""
    spelled = [spell(word) for word in words]
    spelled[end] = END
    if unknown is not None:
        spelled[unknown] = UNKNOWN
    if len(set(spelled)) < len(spelled):
        twice = Counter(spelled).most_common(1)[0][0]
        raise BadInput(f"two tokens are both spelled {twice!r}, so an ARPA file cannot tell them apart")
    extra = 1 if unknown is not None else 2
    with translate_os_errors(str(path)), _writing(path) as file:
        file.write("\\data\\\n")
        for order, level in enumerate(levels, start=1):
            file.write(f"ngram {order}={len(level) + (extra if order == 1 else 0)}\n")
        for order in range(1, len(levels) + 1):
            file.write(f"\n\\{order}-grams:\n")
            if order == 1 and unknown is None:
                file.write(f"{NEVER:g}\t{UNKNOWN}\t0\n" if len(levels) > 1 else f"{NEVER:g}\t{UNKNOWN}\n")
            for lines in _sections(levels, order, spelled, end):
                file.write(lines)
        file.write("\n\\end\\\n")


def _sections(levels: Sequence[Level], order: int, spelled: Sequence[str], end: int) -> Iterator[str]:
    """Yield the lines of one order, some at a time."""
    level = levels[order - 1]
    names, first = np.array(spelled, dtype=object), np.array(spelled, dtype=object)
    if order > 1:
        first[end] = BEGIN
    for start in range(0, len(level), LINES):
        stop = min(start + LINES, len(level))
        rows = ngrams_of(levels, order, start, stop)
        columns = [(names if place else first)[rows[:, place]] for place in range(order)]
        texts = map(" ".join, zip(*columns, strict=True))
        probabilities = _digits(level.probabilities[start:stop])
        if level.backoffs is None:
            lines = [f"{p}\t{text}\n" for p, text in zip(probabilities, texts, strict=True)]
        else:
            backoffs = _digits(level.backoffs[start:stop])
            lines = [f"{p}\t{t}\t{b}\n" for p, t, b in zip(probabilities, texts, backoffs, strict=True)]
            if order == 1 and start <= end < stop:
                at = end - start
                lines[at] = f"{probabilities[at]}\t{END}\t0\n{NEVER:g}\t{BEGIN}\t{backoffs[at]}\n"
        if level.backoffs is None and order == 1 and start <= end < stop:
            lines[end - start] += f"{NEVER:g}\t{BEGIN}\n"
        yield "".join(lines)


def _digits(values: Logs) -> list[str]:
    """The shortest text that reads back as the same float32; whole numbers without a point."""
    return [text.removesuffix(".0") for text in values.astype("U").tolist()]


def spell(word: str) -> str:
    """Spell a token without white space, never as nothing, and never as what has a meaning in ARPA files."""
    if not word or word in (BEGIN, END, UNKNOWN):
        return f"<|{word}|>"
    return re.sub(r"\s", lambda found: f"<|U+{ord(found[0]):04X}|>", word)


def read_arpa(path: Path, *, end_last: bool = False) -> Arpa:
    """Read a file of any toolkit; say the line where it is not one. Ids are in the order of the words.

    With `end_last`, </s> gets the last id, where the tokenizers library puts what is no word of a text.
    """
    with translate_os_errors(str(path)), _reading(path) as file:
        lines = _Lines(path, file)
        counts = _counts(lines)
        words, unigrams, backoffs = _read_unigrams(lines, counts, end_last=end_last)
        found = [_read_order(lines, order, counts, words) for order in range(2, len(counts) + 1)]
    ids = {word: i for i, word in enumerate(words)}
    levels = _grown(unigrams, backoffs, found, len(words))
    return Arpa(tuple(words), levels, ids[END], ids[UNKNOWN])


@dataclass
class _Lines:
    """The lines of a file, and where one is."""

    path: Path
    file: IO[str]
    number: int = 0

    def next(self) -> str:
        line = self.file.readline()
        if not line:
            raise self.wrong("the file ends here; \\end\\ is missing")
        self.number += 1
        return line.rstrip("\n\r")

    def text(self) -> str:
        """Return the next line that is not empty."""
        while not (line := self.next().strip()):
            pass
        return line

    def wrong(self, what: str) -> BadInput:
        return BadInput(
            f"{self.path}:{self.number}: {what}", hint="an ARPA file is what KenLM or SRILM writes"
        )


def _counts(lines: _Lines) -> list[int]:
    while lines.next().strip() != "\\data\\":
        pass
    counts: list[int] = []
    while (line := lines.text()).startswith("ngram "):
        match = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)
        if match is None or int(match[1]) != len(counts) + 1:
            raise lines.wrong(f"{line!r} is not 'ngram {len(counts) + 1}=COUNT'")
        counts.append(int(match[2]))
    if not 1 <= len(counts) <= MAX_ORDER:
        raise lines.wrong(f"{len(counts)} orders; 1 to {MAX_ORDER} are supported")
    _expect(lines, line, 1)
    return counts


def _expect(lines: _Lines, line: str, order: int) -> None:
    if line != f"\\{order}-grams:":
        raise lines.wrong(f"{line!r} where '\\{order}-grams:' should be")


def _read_unigrams(lines: _Lines, counts: list[int], *, end_last: bool) -> tuple[list[str], Logs, Logs]:
    """Return the words as they come, </s> with the backoff of <s>; <unk> last where there was none."""
    found: dict[str, tuple[float, float]] = {}
    for _ in range(counts[0]):
        probability, words, backoff = _parsed(lines, 1)
        if words[0] in found:
            raise lines.wrong(f"{words[0]!r} is there twice")
        found[words[0]] = probability, backoff
    if END not in found:
        raise lines.wrong(f"there is no {END} among the words")
    found.setdefault(UNKNOWN, (-100.0, 0.0))  # what KenLM takes where there is none
    begin = found.pop(BEGIN, (0.0, 0.0))
    found[END] = (found.pop(END) if end_last else found[END])[0], begin[1]
    values = np.array(list(found.values()), np.float32)
    _end_of(lines, 1, counts)
    return list(found), values[:, 0].copy(), values[:, 1].copy()


def _read_order(lines: _Lines, order: int, counts: list[int], words: list[str]) -> tuple[Rows, Logs, Logs]:
    last = {word: i for i, word in enumerate(words)}
    middle = {word: i for word, i in last.items() if word != END}
    place = [{**middle, BEGIN: last[END]}, *[middle] * (order - 2), last]
    rows = np.empty((counts[order - 1], order), np.uint32)
    values = np.empty((counts[order - 1], 2), np.float32)
    for i in range(counts[order - 1]):
        probability, found, backoff = _parsed(lines, order)
        try:
            rows[i] = [known[word] for known, word in zip(place, found, strict=True)]
        except KeyError as error:
            word = error.args[0]
            why = "may not be there" if word in (BEGIN, END) else "is not among the words"
            raise lines.wrong(f"{word!r} in {' '.join(found)!r} {why}") from None
        values[i] = probability, backoff
    _end_of(lines, order, counts)
    return rows, values[:, 0].copy(), values[:, 1].copy()


def _parsed(lines: _Lines, order: int) -> tuple[float, list[str], float]:
    line = lines.next()
    # Only ASCII white space separates: words of some languages hold others.
    fields = [field for field in re.split("[\t ]+", line.strip("\t ")) if field]
    try:
        if len(fields) not in (order + 1, order + 2):
            raise ValueError
        backoff = float(fields[order + 1]) if len(fields) == order + 2 else 0.0
        return float(fields[0]), fields[1 : order + 1], backoff
    except ValueError:
        raise lines.wrong(f"{line!r} is not a number, {order} words and perhaps a number") from None


def _end_of(lines: _Lines, order: int, counts: list[int]) -> None:
    line = lines.text()
    if order < len(counts):
        _expect(lines, line, order + 1)
    elif line != "\\end\\":
        raise lines.wrong(f"{line!r} where \\end\\ should be")


def _grown(
    unigrams: Logs, backoffs: Logs, found: list[tuple[Rows, Logs, Logs]], vocabulary: int
) -> tuple[Level, ...]:
    """Build the tree, putting in what is left out."""
    wanted = _closed([rows for rows, _, _ in found])
    highest = len(found) + 1
    levels = [Level(unigrams, backoffs=backoffs if highest > 1 else None)]
    parents = np.arange(vocabulary, dtype=np.uint32)[:, None]
    for order, (rows, given) in enumerate(zip(wanted, found, strict=True), start=2):
        below = levels[-1]
        begins = np.searchsorted(_ranks(parents, rows[:, :-1]), np.arange(len(parents) + 1)).astype(np.uint32)
        levels[-1] = below = replace(below, begins=begins)
        level = Level(
            probabilities=_placed(rows, given[0], given[1], np.float32(np.nan)),
            words=rows[:, -1].astype(word_type(vocabulary)),
            suffixes=_ranks(parents, rows[:, 1:]).astype(np.uint32),
            backoffs=_placed(rows, given[0], given[2], np.float32(0)) if order < highest else None,
        )
        levels.append(_filled(level, below))
        parents = rows
    return tuple(levels)


def _closed(found: list[Rows]) -> list[Rows]:
    """Return the n-grams of each order from 2 on, sorted, with all prefixes and suffixes of longer ones."""
    wanted = [np.unique(rows, axis=0) for rows in found]
    for i in range(len(wanted) - 1, 0, -1):
        longer = wanted[i]
        wanted[i - 1] = np.unique(np.concatenate([wanted[i - 1], longer[:, :-1], longer[:, 1:]]), axis=0)
    return wanted


def _ranks(table: Rows, rows: Rows) -> NDArray[np.int64]:
    """Return where each row is in a sorted table that has them all."""
    return np.searchsorted(_as_keys(table), _as_keys(rows))


def _as_keys(rows: Rows) -> NDArray[Any]:
    """Rows as strings of big-endian bytes, which sort as the rows do."""
    wide = np.ascontiguousarray(rows, dtype=">u4")
    return wide.view(np.dtype((np.void, 4 * rows.shape[1]))).ravel() if len(rows) else np.empty(0, "V4")


def _placed(rows: Rows, given: Rows, values: Logs, otherwise: np.float32) -> Logs:
    placed = np.full(len(rows), otherwise, np.float32)
    placed[_ranks(rows, given)] = values
    return placed


def _filled(level: Level, below: Level) -> Level:
    """Give what was put in the probability that backing off gives."""
    missing = np.flatnonzero(np.isnan(level.probabilities))
    if not len(missing):
        return level
    assert below.begins is not None
    assert below.backoffs is not None
    assert level.suffixes is not None
    parents = np.searchsorted(below.begins, missing, side="right") - 1
    level.probabilities[missing] = below.backoffs[parents] + below.probabilities[level.suffixes[missing]]
    return level


@contextmanager
def _writing(path: Path) -> Iterator[IO[str]]:
    if path.suffix == ".gz":
        # Neither name nor time: the same model gives the same bytes.
        with (
            path.open("wb") as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", newline="\n") as file,
        ):
            yield file
        return
    with path.open("w", encoding="utf-8", newline="\n") as file:
        yield file


@contextmanager
def _reading(path: Path) -> Iterator[IO[str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8", newline="\n") as file:
            yield file
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
        raise BadInput(f"{path}: cannot be read as text: {error}", hint="ARPA files are UTF-8") from None
