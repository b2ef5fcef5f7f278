"""A client of `windlass prove sites` on its own node: prints when and where each request is answered.

    python -m windlass.lab.proofs.sites.probe_client NAMESERVER ZONE PORT MODEL

It does what most programs do: resolve the name, connect to the address, give up after a second. The key is in
$WINDLASS_KEY. Each answer is a line of JSON. `windlass.lab.proofs.sites.sdk_probe_client` does the same with
our SDK.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import dns.exception
import dns.resolver
import httpx

from windlass.spec.protocol.entrypoint import die_with_parent, emit

PAUSE_S = 0.1
GIVE_UP_S = 1.0


def main(argv: list[str]) -> None:
    die_with_parent()
    ask = _by_name(*argv)
    while True:
        where = ask()
        emit({"answered": where is not None, "site": where, "time": time.time()})
        time.sleep(PAUSE_S)


def _by_name(nameserver: str, zone: str, port: str, model: str) -> Callable[[], str | None]:
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.lifetime, resolver.cache = [nameserver], GIVE_UP_S, None
    headers = {"authorization": f"Bearer {os.environ['WINDLASS_KEY']}"}
    body = {"model": model, "prompt": "The anchor", "max_tokens": 4, "temperature": 0}

    def ask() -> str | None:
        try:
            address = str(resolver.resolve(zone, "A")[0])
            url = f"http://{address}:{port}/v1/completions"
            reply = httpx.post(url, json=body, headers=headers, timeout=GIVE_UP_S)
        except (dns.exception.DNSException, httpx.HTTPError, OSError):
            return None
        return address if reply.status_code == httpx.codes.OK else None

    return ask


if __name__ == "__main__":
    main(sys.argv[1:])
