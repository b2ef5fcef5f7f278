"""The proof in a small form: real training, real engines, real traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.lab.proofs.rollback.rollback_proof import is_taken_back

SMALL = """
import json, sys
from pathlib import Path
from windlass.lab.proofs.rollback.rollback_proof import prove_rollback

say = lambda words: print(words, file=sys.stderr)
kinds = ("nan", "mistokenised")
print(json.dumps(prove_rollback(Path(sys.argv[1]), say, trials=1, clients=2, steps=30, kinds=kinds)))
"""


def proved(home: Path) -> tuple[dict[str, Any], str]:
    """Do the proof in a process of its own, as users do; return what it found, and what it said.

    The supervisor listens for seconds of silence in threads of that process. This one holds what a thousand
    other tests left in it.
    """
    done = subprocess.run(
        [sys.executable, "-c", SMALL, str(home)], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result, done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_bad_versions_are_taken_back_and_a_good_one_is_promoted(tmp_path: Path) -> None:
    result, said = proved(tmp_path)
    figures = result["figures"]
    assert is_taken_back(figures), "\n".join([said, *result["failures"]])
    assert (figures["bad_versions"], figures["good_promoted"]) == (2, 1)
    assert figures["answered_requests"] > 10
