"""The tree to its suffixes, and from them the counts that Kneser-Ney smoothing is made of.

Input: the tree. Output: for each order k from 2 on suffixes-k (u32), and for each order below the highest
adjusted-k (u64): how many different tokens come before an n-gram, or, where it begins a document and so
nothing comes before it, how often it was seen.

The suffix of w1..wk is a child of the suffix of w1..w(k-1), which is known from the order below. Parents are
visited in order, so the searches read that order sequentially.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.models.ngram.native import at, ours
from windlass.models.ngram.trie_numpy import find
from windlass.spec.protocol.progress import Progress, Report, silent
from windlass.store.manifest import DirectoryWriter
from windlass.train.ngram.mmap_arrays import Tree, adopt, mapped, parents_of


def write_links(
    writer: DirectoryWriter, folder: Path, tree: Tree, end: int, *, chunk: int, report: Report = silent
) -> None:
    """Write all suffixes and adjusted counts into `folder`, where the writer's directory is."""
    total = sum(tree.nodes(order) for order in range(2, tree.order + 1))
    done = 0
    for order in range(2, tree.order + 1):
        suffixes = mapped(folder / f"suffixes-{order}", "<u4", length=tree.nodes(order))
        adjusted = mapped(folder / f"adjusted-{order - 1}", "<u8", length=tree.nodes(order - 1))
        begins = tree.begins(order - 1)
        for first, last in parents_of(begins, chunk):
            rows = slice(int(begins[first]), int(begins[last]))
            found = _suffixes(folder, tree, order, begins, first, last)
            suffixes[rows] = found
            np.add.at(adjusted, found, np.uint64(1))
            done += len(found)
            report(Progress("link", done, total, "n-grams"))
        _take_seen(adjusted, tree, order - 1, end)
        adopt(writer, suffixes, f"suffixes-{order}")
        adopt(writer, adjusted, f"adjusted-{order - 1}")


def _take_seen(adjusted: NDArray[Any], tree: Tree, order: int, end: int) -> None:
    """n-grams that begin with the beginning of a document count as often as they were seen."""
    rows = dict(tree.after_end(end)).get(order)
    if rows is not None:
        adjusted[rows] = tree.counts(order)[rows]


def _suffixes(
    folder: Path, tree: Tree, order: int, begins: NDArray[np.uint32], first: int, last: int
) -> NDArray[np.uint32]:
    """Return the suffixes of the children of some parents, in order."""
    words = tree.words(order)
    rows = slice(int(begins[first]), int(begins[last]))
    if order == 2:
        return np.array(words[rows], np.uint32)
    parents = mapped(folder / f"suffixes-{order - 1}", "<u4")
    below, sought = tree.begins(order - 2), tree.words(order - 1)
    return linked(first, last, begins, words, parents, below, sought)


def linked(
    first: int,
    last: int,
    begins: NDArray[np.uint32],
    words: NDArray[np.uint32],
    parents: NDArray[np.uint32],
    below: NDArray[np.uint32],
    sought: NDArray[np.uint32],
    *,
    native: bool = True,
) -> NDArray[np.uint32]:
    """Find each child of the parents first..last, by its word, among the children of its parent's suffix."""
    rows = slice(int(begins[first]), int(begins[last]))
    shared = ours() if native else None
    if shared is None:
        sizes = (begins[first + 1 : last + 1] - begins[first:last]).astype(np.int64)
        return find(below, sought, np.repeat(parents[first:last], sizes), words[rows]).astype(np.uint32)
    out = np.empty(rows.stop - rows.start, np.uint32)
    shared.windlass_ngram_link(
        first, last, at(begins), at(words), at(parents), at(below), at(sought), at(out)
    )
    return out
