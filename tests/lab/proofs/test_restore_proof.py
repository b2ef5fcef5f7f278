"""Everything but the backup is lost, on a real S3 server, and comes back."""

from pathlib import Path

import pytest

from windlass.lab.chaos.storage import find_server
from windlass.lab.proofs.restore_proof import is_back, prove_restore


@pytest.mark.long
@pytest.mark.slow
def test_a_model_answers_with_an_old_key_and_a_run_continues(tmp_path: Path) -> None:
    to = "s3" if find_server() else "folder"
    result = prove_restore(tmp_path, lambda _: None, to=to, steps=8)
    figures = result["figures"]
    assert is_back(figures), result
    assert figures["second_sent_bytes"] == 0
    assert (figures["keys_back"], figures["keys_lost"]) == (1, 1)
    assert figures["lost_known_s"] > 0


def test_what_did_not_come_back_is_no_proof() -> None:
    good = {"same_answer": 1, "keys_back": 1, "resumed_from_step": 5, "resumed_to_step": 9}
    assert is_back(good)
    for bad in ({"same_answer": 0}, {"keys_back": 0}, {"resumed_from_step": 0}, {"resumed_to_step": 5}):
        assert not is_back({**good, **bad})
