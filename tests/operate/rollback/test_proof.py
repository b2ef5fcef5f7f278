"""The proof in a small form: real training, real engines, real traffic."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.operate.rollback.proof import is_taken_back, prove_rollback


@pytest.mark.slow
def test_bad_versions_are_taken_back_and_a_good_one_is_promoted(tmp_path: Path) -> None:
    said: list[str] = []
    result = prove_rollback(
        tmp_path, said.append, trials=1, clients=2, steps=30, kinds=("nan", "mistokenised")
    )
    figures = result["figures"]
    assert is_taken_back(figures), "\n".join([*said, *result["failures"]])
    assert (figures["bad_versions"], figures["good_promoted"]) == (2, 1)
    assert figures["answered_requests"] > 10
