"""Counts to probabilities: interpolated modified Kneser-Ney, with n-grams that are seen too rarely left out.

Input: the tree, its suffixes and adjusted counts. Output: the arrays of the model. Let a be the adjusted
count of an n-gram cw (of the highest order: how often it was seen), A the sum of a over all words after
the context c, D(a) the discount, and c' the context without its first word:

    p(w|c) = (a - D(a)) / A + b(c) p(w|c')      b(c) = (D(a) of all that is kept + a of all that is not) / A

and below the first order p is the same for every token of the vocabulary. b(c) is the backoff of c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.files import PendingArray, array_name
from windlass.models.ngram.trie import word_type
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.train.ngram.discounts import Discounts, discounts_of
from windlass.train.ngram.mmap_arrays import Tree, mapped, parents_of

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """The counts from which the model is estimated."""

    tree: Tree
    links: Path
    thresholds: tuple[int, ...]
    """n-grams seen no oftener than this are left out; one number for each order."""

    def adjusted(self, order: int) -> NDArray[np.uint64]:
        if order < self.tree.order:
            return mapped(self.links / f"adjusted-{order}", "<u8")
        counts = self.tree.counts(order)
        if order > 1:
            return counts
        seen = np.zeros(self.tree.vocabulary, np.uint64)
        seen[self.tree.words(1)] = counts
        return seen

    def kept(self, order: int, rows: slice) -> NDArray[np.bool_]:
        return self.tree.counts(order)[rows] > np.uint64(self.thresholds[order - 1])

    def suffixes(self, order: int) -> NDArray[np.uint32]:
        return mapped(self.links / f"suffixes-{order}", "<u4")

    def discounts(self, order: int, chunk: int) -> Discounts:
        counts, found = self.adjusted(order), np.zeros(6, np.int64)
        for start in range(0, len(counts), chunk):
            few = np.minimum(counts[start : start + chunk], np.uint64(5)).astype(np.int64)
            found += np.bincount(few, minlength=6)
        n1, n2, n3, n4 = found[1:5].tolist()
        return discounts_of((n1, n2, n3, n4))


@dataclass
class Estimates:
    """The arrays of a model under construction, in files of a scratch directory."""

    folder: Path
    vocabulary: int
    lengths: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            path.unlink()

    def append(self, order: int, kind: str, values: NDArray[Any]) -> None:
        name = array_name(order, kind)
        dtype = self._dtype(kind)
        with (self.folder / name).open("ab") as file:
            file.write(np.ascontiguousarray(values, dtype=dtype).data)
        self.lengths[name] = self.lengths.get(name, 0) + len(values)

    def promises(self) -> dict[str, PendingArray]:
        return {name: self._promise(name, length) for name, length in self.lengths.items()}

    def ngrams(self, order: int) -> tuple[int, ...]:
        return tuple(self.lengths.get(array_name(k, "probabilities"), 0) for k in range(1, order + 1))

    def _promise(self, name: str, length: int) -> PendingArray:
        dtype = self._dtype(name.partition(".")[2])
        return PendingArray(dtype, length, lambda: _pieces(self.folder / name, dtype))

    def _dtype(self, kind: str) -> np.dtype[Any]:
        kinds = {"probabilities": "<f4", "backoffs": "<f4", "begins": "<u4", "suffixes": "<u4"}
        return np.dtype(kinds[kind]) if kind in kinds else word_type(self.vocabulary)


def estimate(
    statistics: Statistics, estimates: Estimates, *, chunk: int, report: Report = silent
) -> Estimates:
    """Compute every array of the model."""
    tree = statistics.tree
    estimates.begin()
    _unigrams(statistics, estimates, chunk)
    total = sum(tree.nodes(order) for order in range(2, tree.order + 1))
    done = 0
    ranks: NDArray[np.uint32] | None = None
    for order in range(2, tree.order + 1):
        level = _Order(statistics, estimates, order, chunk, ranks)
        for rows in level.work():
            done += rows
            report(Progress("estimate", done, total, "n-grams"))
        ranks = level.ranks
    return estimates


def _unigrams(statistics: Statistics, estimates: Estimates, chunk: int) -> None:
    counts, discounts = statistics.adjusted(1), statistics.discounts(1, chunk)
    _note(estimates, 1, discounts)
    taken, total = discounts.of(counts), float(counts.sum())
    shares = (counts - taken) / total + taken.sum() / total / len(counts)
    _save_linear(estimates, 1, shares.astype(np.float32))
    estimates.append(1, "probabilities", _log10(shares))


class _Order:
    """Estimates one order, and the backoffs of the one below, which its contexts are."""

    def __init__(
        self,
        statistics: Statistics,
        estimates: Estimates,
        order: int,
        chunk: int,
        ranks_below: NDArray[np.uint32] | None,
    ) -> None:
        self._statistics, self._estimates, self._order, self._chunk = statistics, estimates, order, chunk
        self._discounts = statistics.discounts(order, chunk)
        _note(estimates, order, self._discounts)
        self._below = mapped(_linear(estimates, order - 1), "<f4")
        self._ranks_below = ranks_below
        self._prunes = statistics.thresholds[order - 1] > 0
        self._nodes = 0
        self.ranks = self._new_ranks()
        """New index of each node after pruning; None without pruning."""

    def work(self) -> Iterator[int]:
        """Estimate in pieces; yield the number of n-grams of each."""
        begins = self._statistics.tree.begins(self._order - 1)
        linear = mapped(_linear(self._estimates, self._order), "<f4", length=int(begins[-1]))
        for kind in ("words", "suffixes", "probabilities"):
            self._estimates.append(self._order, kind, np.empty(0))
        self._estimates.append(self._order - 1, "backoffs", np.empty(0))
        for first, last in parents_of(begins, self._chunk):
            rows = slice(int(begins[first]), int(begins[last]))
            linear[rows] = self._piece(rows, begins[first : last + 1].astype(np.int64), slice(first, last))
            yield rows.stop - rows.start
        self._estimates.append(self._order - 1, "begins", np.array([self._nodes]))

    def _piece(self, rows: slice, begins: NDArray[np.int64], parents: slice) -> NDArray[np.float32]:
        statistics, order = self._statistics, self._order
        counts = np.array(statistics.adjusted(order)[rows])
        kept = statistics.kept(order, rows)
        taken = np.where(kept, self._discounts.of(counts), counts)
        starts = begins - begins[0]
        sums = _summed(counts.astype(np.float64), starts)
        backoffs = np.divide(_summed(taken, starts), sums, out=np.ones(len(sums)), where=sums > 0)
        of = np.repeat(np.arange(len(sums)), np.diff(starts))
        suffixes = np.array(statistics.suffixes(order)[rows])
        shares = (counts - taken) / sums[of] + backoffs[of] * self._below[suffixes]
        words = statistics.tree.words(order)[rows]
        self._write_children(rows, kept, words, suffixes, shares)
        self._write_parents(parents, kept, starts, backoffs)
        return shares.astype(np.float32)

    def _write_children(
        self,
        rows: slice,
        kept: NDArray[np.bool_],
        words: NDArray[np.uint32],
        suffixes: NDArray[np.uint32],
        shares: Shares,
    ) -> None:
        estimates, order = self._estimates, self._order
        estimates.append(order, "words", words[kept])
        kept_suffixes = suffixes[kept]
        ranks = self._ranks_below
        estimates.append(order, "suffixes", kept_suffixes if ranks is None else ranks[kept_suffixes])
        estimates.append(order, "probabilities", _log10(shares[kept]))
        if self.ranks is not None:
            self.ranks[rows] = self._nodes + np.cumsum(kept) - kept

    def _write_parents(
        self, parents: slice, kept: NDArray[np.bool_], starts: NDArray[np.int64], backoffs: Shares
    ) -> None:
        before = np.concatenate([[0], np.cumsum(kept)])
        begins, stays = self._nodes + before[starts[:-1]], np.ones(len(backoffs), bool)
        if self._order > 2:
            stays = self._statistics.kept(self._order - 1, parents)
        self._estimates.append(self._order - 1, "begins", begins[stays])
        self._estimates.append(self._order - 1, "backoffs", _log10(backoffs[stays]))
        self._nodes += int(before[-1])

    def _new_ranks(self) -> NDArray[np.uint32] | None:
        if not self._prunes:
            return None
        length = self._statistics.tree.nodes(self._order)
        return mapped(self._estimates.folder / f"ranks-{self._order}", "<u4", length=length)


def _summed(values: Shares, starts: NDArray[np.int64]) -> Shares:
    """Return the sum of each segment, 0 for an empty one. The sums do not depend on where arrays were cut."""
    sums = np.zeros(len(starts) - 1)
    full = np.flatnonzero(np.diff(starts))
    if len(full):
        sums[full] = np.add.reduceat(values, starts[full])
    return sums


def _log10(shares: Shares) -> NDArray[np.float32]:
    """Clamp at 0: rounding may lift a probability slightly above 1."""
    return np.minimum(np.log10(shares), 0.0).astype(np.float32)


def _linear(estimates: Estimates, order: int) -> Path:
    return estimates.folder / f"shares-{order}"


def _save_linear(estimates: Estimates, order: int, shares: NDArray[np.float32]) -> None:
    mapped(_linear(estimates, order), "<f4", length=len(shares))[:] = shares


def _note(estimates: Estimates, order: int, discounts: Discounts) -> None:
    if discounts.why_fallback is not None:
        amounts = ", ".join(f"{d:g}" for d in discounts.amounts)
        estimates.notes.append(
            f"order {order}: the text is too small or too regular for its own discounts"
            f" ({discounts.why_fallback}); subtracting {amounts} from counts of 1, 2 and more"
        )


def _pieces(path: Path, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    with path.open("rb") as file:
        while len(piece := np.fromfile(file, dtype, 1 << 20)):
            yield piece
