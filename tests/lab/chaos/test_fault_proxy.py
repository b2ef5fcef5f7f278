"""A proxy that behaves as bad networks do, from a seed."""

from __future__ import annotations

import http.server
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.lab.chaos.fault_proxy import FaultProxy, FaultRates


class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"good")

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """In front of a server that always answers."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with FaultProxy("127.0.0.1", server.server_port) as proxy:
            yield proxy
        server.shutdown()


def asked(proxy: FaultProxy) -> str:
    try:
        with urllib.request.urlopen(proxy.url, timeout=60) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return str(error.code)
    except OSError:
        return "cut"


def test_what_is_to_pass_passes(proxy: FaultProxy) -> None:
    assert [asked(proxy) for _ in range(5)] == ["good"] * 5
    assert proxy.counts == {"pass": 5}


@pytest.mark.parametrize(
    ("faults", "answer"),
    [
        (FaultRates(error=1.0, statuses=(503,)), "503"),
        (FaultRates(cut=1.0), "cut"),
        (FaultRates(late=1.0, late_s=0.01), "good"),
    ],
)
def test_every_fault_is_met(proxy: FaultProxy, faults: FaultRates, answer: str) -> None:
    proxy.faults = faults
    assert asked(proxy) == answer
    proxy.faults = FaultRates()
    assert asked(proxy) == "good"


def test_the_same_seed_has_the_same_faults(proxy: FaultProxy) -> None:
    faults = FaultRates(cut=0.3, error=0.3)
    fates = []
    for _ in range(2):
        with FaultProxy(proxy.host, proxy.port, faults, seed=5) as one:
            fates.append([asked(one) for _ in range(12)])
    assert fates[0] == fates[1]
    assert len(set(fates[0])) > 2


@given(st.floats(0, 1, exclude_max=True))
def test_shares_divide_all_chances(chance: float) -> None:
    fate = FaultRates(late=0.1, cut=0.2, error=0.3).fate(chance)
    assert fate == ("late" if chance < 0.1 else "cut" if chance < 0.1 + 0.2 else fate)
    assert FaultRates().fate(chance) == "pass"
