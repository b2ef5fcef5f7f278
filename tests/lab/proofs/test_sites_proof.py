from __future__ import annotations

import shutil

import pytest

from windlass.lab.chaos.network import why_no_network
from windlass.lab.proofs.sites.sites_proof import prove_sites

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_no_network() is not None, reason=str(why_no_network())),
    pytest.mark.skipif(shutil.which("unbound") is None, reason="unbound is not installed"),
]


@pytest.mark.long
def test_clients_reach_the_other_site_when_theirs_is_cut_off_and_come_back() -> None:
    figures = prove_sites(lambda _: None, ttl_s=1)["figures"]
    assert figures["sdk_unanswered"] == 0
    assert figures["resolver_failover_s"] > 0
    assert figures["back_s"] > 0
