"""Small texts, counted two ways: by the stages, and by dictionaries as slow and plain as can be."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from windlass.models.ngram.files import load, save_model
from windlass.models.ngram.model import NgramModel
from windlass.spec.shape import NgramShape
from windlass.store.manifest import DirectoryWriter
from windlass.store.store_dir import StoreDir
from windlass.train.ngram.blocks import Packing
from windlass.train.ngram.build import Build
from windlass.train.ngram.discounts import discounts_of
from windlass.train.ngram.settings import CountSettings
from windlass.train.ngram.source import ArraySource

END = 0
Gram = tuple[int, ...]


def stream_of(documents: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([t for d in documents for t in (*d, END)], np.uint16)


def thresholds_of(prune: Sequence[int], order: int) -> tuple[int, ...]:
    given = tuple(prune) or (0,)
    return given + given[-1:] * (order - len(given))


@dataclass
class Naive:
    """The definition, one n-gram at a time: Chen and Goodman's formulas over dictionaries."""

    documents: Sequence[Sequence[int]]
    vocabulary: int
    order: int
    prune: Sequence[int] = ()
    seen: list[Counter[Gram]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = [Counter() for _ in range(self.order + 1)]
        for document in self.documents:
            text = (END, *document, END)
            for k in range(1, self.order + 1):
                first = 1 if k == 1 else 0  # <s> is nobody's next word
                for i in range(first, len(text) - k + 1):
                    self.seen[k][text[i : i + k]] += 1
        before: dict[Gram, set[int]] = defaultdict(set)
        for k in range(2, self.order + 1):
            for gram in self.seen[k]:
                before[gram[1:]].add(gram[0])
        self.adjusted = [Counter[Gram]() for _ in range(self.order + 1)]
        for k in range(1, self.order + 1):
            for gram, count in self.seen[k].items():
                raw = k == self.order or (k > 1 and gram[0] == END)
                self.adjusted[k][gram] = count if raw else len(before[gram])
        self.discounts = []
        for k in range(1, self.order + 1):
            of = Counter(self.adjusted[k].values())
            self.discounts.append(discounts_of((of[1], of[2], of[3], of[4])))
        self.after: list[dict[Gram, list[Gram]]] = []
        for k in range(1, self.order + 1):
            groups: dict[Gram, list[Gram]] = defaultdict(list)
            for gram in self.adjusted[k]:
                groups[gram[:-1]].append(gram)
            self.after.append(groups)

    def _taken(self, gram: Gram) -> float:
        k, count = len(gram), self.adjusted[len(gram)][gram]
        if self.seen[k][gram] <= thresholds_of(self.prune, self.order)[k - 1]:
            return count
        return self.discounts[k - 1].amounts[min(count, 3) - 1] if count else 0.0

    def probability(self, word: int, context: Gram) -> float:
        """A context that was never seen says nothing; what is shorter is asked."""
        lower = 1 / self.vocabulary if not context else self.probability(word, context[1:])
        grams = self.after[len(context)].get(context, [])
        total = sum(self.adjusted[len(g)][g] for g in grams)
        if not total:
            return lower
        gram = (*context, word)
        count = self.adjusted[len(gram)].get(gram, 0)
        own = (count - self._taken(gram)) / total if count else 0.0
        return own + sum(map(self._taken, grams)) / total * lower

    def score(self, words: Sequence[int]) -> float:
        """Return the logarithm of the last word's probability; only the last few before it matter."""
        known = list(words[:-1])
        if END in known:
            known = known[len(known) - 1 - known[::-1].index(END) :]
        return math.log(self.probability(words[-1], tuple(known[max(0, len(known) - self.order + 1) :])))


Make = Callable[..., NgramModel]


@pytest.fixture(autouse=True)
def undurable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of small builds need not wait for the disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Build a model of documents of token ids; its directory is the model's attribute `folder`."""

    def build(
        documents: Sequence[Sequence[int]],
        vocabulary: int,
        order: int,
        prune: Sequence[int] = (),
        *,
        block: int | None = None,
        processes: int = 1,
        native: bool = True,
    ) -> NgramModel:
        folder = tmp_path_factory.mktemp("ngram")
        packing = Packing(order, vocabulary, END)
        settings = CountSettings(packing, thresholds_of(prune, order), 1 << 30, processes, block)
        made = Build(ArraySource(stream_of(documents)), settings, folder / "work").run()
        assert made is not None
        writer = DirectoryWriter(StoreDir(folder / "model"))
        shape = NgramShape(vocabulary=vocabulary, context=64, order=order, ngrams=made.ngrams(order))
        save_model(writer, shape, made.promises(), special_tokens={"eos_token_id": END})
        writer.commit()
        model = load(folder / "model", native=native)
        model.folder = folder / "model"  # type: ignore[attr-defined]
        return model

    return build


@pytest.fixture
def naive() -> type[Naive]:
    return Naive


@pytest.fixture
def digest_of() -> Callable[[NgramModel], str]:
    from windlass.store.manifest import load_manifest

    def digest(model: NgramModel) -> str:
        folder: Path = model.folder  # type: ignore[attr-defined]
        manifest = load_manifest(StoreDir(folder))
        assert manifest is not None
        return manifest.digest

    return digest
