from __future__ import annotations

import pytest

from windlass.train.ngram.discounts import FALLBACK, discounts_of


def test_discounts_are_those_of_chen_and_goodman() -> None:
    y = 100 / (100 + 2 * 40)
    expected = (1 - 2 * y * 40 / 100, 2 - 3 * y * 20 / 40, 3 - 4 * y * 10 / 20)
    assert discounts_of((100, 40, 20, 10)).amounts == pytest.approx(expected)


@pytest.mark.parametrize("counts", [(0, 1, 1, 1), (5, 0, 1, 1), (1, 1, 2, 0), (1, 1, 9, 0)])
def test_counts_that_would_leave_nothing_for_what_is_unseen_fall_back(
    counts: tuple[int, int, int, int],
) -> None:
    found = discounts_of(counts)
    assert found.amounts == FALLBACK
    assert found.why_fallback
