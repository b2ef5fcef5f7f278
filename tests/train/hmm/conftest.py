"""Real text as sequences of words."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

TEXT = Path(__file__).parents[3].parent / "shared" / "data" / "tinyshakespeare.txt"


@pytest.fixture(scope="session")
def shakespeare_words() -> Callable[[int, int, int], NDArray[np.int64]]:
    """Return a maker of sequences of real words: the commonest `vocabulary` - 1, and one for the others."""
    if not TEXT.exists():
        pytest.skip("the texts of ../shared/data are not here")
    words = TEXT.read_text().split()
    kinds, count = np.unique(words, return_counts=True)
    ranked = kinds[np.argsort(-count, kind="stable")]

    def sequences(count: int, length: int, vocabulary: int) -> NDArray[np.int64]:
        place = {word: at for at, word in enumerate(ranked[: vocabulary - 1])}
        ids = [place.get(word, vocabulary - 1) for word in words[: count * length]]
        return np.array(ids, np.int64).reshape(count, length)

    return sequences
